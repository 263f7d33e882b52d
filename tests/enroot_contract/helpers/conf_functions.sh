#!/bin/bash
# A --conf script with every function Enroot asks for.

environ() {
    echo "CONFIGURED=yes"
}

mounts() {
    echo "tmpfs /configured tmpfs x-create=dir"
}

hooks() {
    echo "hook of ${ENROOT_ROOTFS}" >&2
}

rc() {
    echo "rc: $*"
    echo "${CONFIGURED}"
    cat /proc/mounts
}
