#!/bin/bash
# A --conf script that takes the image's own mounts away.
: > "${ENROOT_ROOTFS}/etc/fstab"
