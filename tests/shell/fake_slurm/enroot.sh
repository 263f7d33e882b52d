# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Enroot for unit tests: says what it was asked (arguments, environment), then does what import.sh, start.sh or
# create.sh in its own directory say; without one an import copies image.sqsh and a start writes facts.json.

here="${BASH_SOURCE[0]%/*}"
verb="$1"
shift
if [[ "${verb}" == version ]]; then
    cat "${here}/version"
    exit
fi
if [[ "$*" == --help ]]; then
    cat "${here}/help"
    exit 0
fi
printf '%s\n' "${verb} $*" >> "${here}/calls"
env -0 > "${here}/${verb}.env"
case "${verb}" in
    import)
        while (($# > 1)); do
            [[ "$1" != --output ]] || output="$2"
            shift
        done
        if [[ -e "${here}/import.sh" ]]; then
            # shellcheck source=/dev/null
            source "${here}/import.sh"
        else
            cp -- "${here}/image.sqsh" "${output}"
        fi
        ;;
    start)
        for word in "$@"; do
            [[ "${word}" != *:/asi:* ]] || facts="${word%%:*}/facts"
        done
        if [[ -e "${here}/start.sh" ]]; then
            # shellcheck source=/dev/null
            source "${here}/start.sh"
        else
            cat -- "${here}/facts.json" > "${facts}"
        fi
        ;;
    create)
        # shellcheck source=/dev/null
        [[ ! -e "${here}/create.sh" ]] || source "${here}/create.sh"
        ;;
esac
