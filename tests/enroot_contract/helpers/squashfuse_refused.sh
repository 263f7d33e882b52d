#!/bin/sh
# A squashfuse for which /dev/fuse is closed.
echo 'fuse: failed to open /dev/fuse: Permission denied' >&2
exit 1
