#!/bin/bash
# A --conf script that takes the image's own variables away and gives others.
: > "${ENROOT_ROOTFS}/etc/environment"

environ() {
    # shellcheck disable=SC2016
    echo 'CONFIGURED=${HOME}'
}
