# shellcheck shell=bash
# The catalog: the alias ASI_NAME or, when it is empty, all of them; with ASI_HISTORY 1 their former meanings too.

asi::main() {
    local path=''
    asi::begin
    ASI_ROOT="$(realpath -e -- "${ASI_WORKSPACE}" 2> /dev/null)" \
        || asi::refuse no_workspace "workspace_root ${ASI_WORKSPACE} does not exist on $(uname -n)"
    asi::put_text workspace "${ASI_ROOT}"
    if [[ -n "${ASI_NAME}" ]]; then
        asi::put_alias "${ASI_NAME}" "${ASI_HISTORY}"
        return 0
    fi
    if [[ ! -d "${ASI_ROOT}/aliases" ]]; then
        return 0 # nothing was published yet
    fi
    while IFS= read -r path; do
        asi::put_alias "${path%.d}" "${ASI_HISTORY}"
    done < <(find "${ASI_ROOT}/aliases" -mindepth 1 -maxdepth 1 -type d -name '[A-Za-z0-9]*.d' -printf '%f\n' | sort)
}

asi::main
