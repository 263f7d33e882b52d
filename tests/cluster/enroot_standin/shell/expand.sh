#!/bin/bash
# Expands one configuration value, or the end of a credentials line, the way Enroot has a shell do it.
set -u
eval "echo $1"
