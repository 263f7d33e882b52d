"""A small program that answers like Enroot 4.1.2, for machines where the real one cannot be installed."""
