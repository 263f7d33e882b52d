#!/bin/bash
# Usage: without_fuse.sh UID GID COMMAND...
# Closes /dev/fuse to users, in this mount namespace only, and runs a command as one.
set -euo pipefail
readonly uid=$1 gid=$2
shift 2
closed=$(mktemp -d)
mount -t tmpfs none "${closed}"
mknod -m 0600 "${closed}/fuse" c 10 229
mount --bind "${closed}/fuse" /dev/fuse
exec setpriv --reuid "${uid}" --regid "${gid}" --clear-groups "$@"
