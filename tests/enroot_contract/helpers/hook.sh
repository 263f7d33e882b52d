#!/bin/sh
# A hook that tells where the image is and asks for a variable and a mount.
echo "hook of ${ENROOT_ROOTFS}" >&2
echo "HOOKED=yes" >> "${ENROOT_ENVIRON}"
echo "tmpfs /hooked tmpfs x-create=dir" >> "${ENROOT_MOUNTS}"
