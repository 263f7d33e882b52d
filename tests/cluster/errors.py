"""The one error of the box."""


class BoxError(RuntimeError):
    """The box could not do what was asked; the message holds the tail of the log concerned."""
