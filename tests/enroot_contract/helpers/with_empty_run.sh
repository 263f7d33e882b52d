#!/bin/bash
# Runs a command with an empty, read-only /run; needs a mount namespace of its own.
set -euo pipefail
mount -t tmpfs -o ro none /run
exec "$@"
