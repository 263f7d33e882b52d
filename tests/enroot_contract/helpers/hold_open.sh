#!/bin/bash
# Keeps a file open as descriptor 3 until its own standard input ends.
set -euo pipefail
exec 3< "$1"
echo ready
read -r _ || true
