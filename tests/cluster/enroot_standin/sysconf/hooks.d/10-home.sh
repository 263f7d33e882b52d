#!/bin/bash
# ENROOT_MOUNT_HOME: the user's home inside, at its own place or as root's.
set -euo pipefail

if [ -z "${ENROOT_MOUNT_HOME-}" ]; then
    exit 0
fi
readonly home=${HOME:-$(getent passwd "$(id -u)" | cut -d : -f 6)}
readonly inside=${ENROOT_REMAP_ROOT:+/root}
printf '%s %s none x-create=dir,bind,rw,nosuid\n' "${home}" "${inside:-${home}}" >> "${ENROOT_MOUNTS}"
printf 'HOME=%s\n' "${inside:-${home}}" >> "${ENROOT_ENVIRON}"
