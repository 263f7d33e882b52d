#!/usr/bin/python3
"""Use more memory than the job asked for, until Slurm ends it."""

import time

held = bytearray(300 * 1024 * 1024)
time.sleep(120)
