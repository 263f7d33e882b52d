#!/bin/sh
# Install what packages.txt names and is not there. Daemons that Debian would start are kept from starting: the
# tests bring up their own, on ports and in directories of their own.
set -eu

list="$(dirname "$0")/packages.txt"
missing=""
for package in $(grep -o '^[a-z0-9.+-]*' "$list"); do
    if ! dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "These Debian packages are missing and only root can install them:$missing" >&2
    exit 1
fi
policy=/usr/sbin/policy-rc.d
made_policy=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
    made_policy=yes
fi
trap 'if [ -n "$made_policy" ]; then rm -f "$policy"; fi' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
# shellcheck disable=SC2086 # one word a package
apt-get install --yes --quiet=2 --no-install-recommends $missing > /dev/null
