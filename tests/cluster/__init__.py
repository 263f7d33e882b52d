"""A real cluster in a box: Slurm, sshd and an OCI registry on loopback, for tests and the demo."""
