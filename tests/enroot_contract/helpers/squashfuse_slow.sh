#!/bin/sh
# A squashfuse on a cold file system.
sleep 2
exec /usr/bin/squashfuse "$@"
