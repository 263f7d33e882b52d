#!/bin/bash
# Usage: conf.sh SCRIPT source|environ|mounts|hooks|rc
# Sources a --conf script and names the functions it defines; later calls print what one of them has to say.
set -euo pipefail
shopt -s lastpipe

readonly conf_script=$1 conf_wanted=$2

if [ "${conf_wanted}" = source ]; then
    # shellcheck source=/dev/null
    source "${conf_script}" >&2
    for name in environ mounts hooks rc; do
        ! declare -F "${name}" || true
    done
    exit 0
fi

# shellcheck source=/dev/null
source "${conf_script}" > /dev/null 2>&1
case "${conf_wanted}" in
rc)
    # The body alone: without the name, the opening brace and the closing one.
    declare -f rc | sed '1,2d;$d'
    ;;
hooks)
    hooks > /dev/null
    ;;
*)
    "${conf_wanted}"
    ;;
esac
