# shellcheck shell=bash
# Make the attempt directory and unpack the staged files into it from the rest of standard input, then compare
# every one of them with its checksum. A directory left by a broken transfer is never used: attempts are random.

# asi::fence - older attempts of this run get no job any more.
asi::fence() {
    local older=''
    for older in "${ASI_RUN_DIRECTORY}"/*/; do
        older="${older%/}"
        if [[ "${older##*/}" != "${ASI_ATTEMPT}" && ! -L "${older}" ]]; then
            asi::take_claim "${older}"
            asi::forget_login "${older}"
        fi
    done
}

asi::main() {
    local attempt=''
    asi::begin
    attempt="${ASI_RUN_DIRECTORY}/${ASI_ATTEMPT}"
    if [[ -L "${ASI_RUN_DIRECTORY}" ]]; then
        asi::refuse unsafe_workspace "${ASI_RUN_DIRECTORY} is a symbolic link"
    fi
    mkdir -m 0700 -- "${ASI_RUN_DIRECTORY}" 2> /dev/null || [[ -d "${ASI_RUN_DIRECTORY}" ]] \
        || asi::refuse unavailable "cannot make ${ASI_RUN_DIRECTORY}"
    mkdir -m 0700 -- "${attempt}" || asi::refuse conflict "attempt directory ${attempt} is already there"
    cd "${attempt}" || asi::refuse unavailable "cannot enter ${attempt}"
    if ! tar -x -f - --no-same-owner -p <&"${ASI_PAYLOAD}"; then
        asi::forget_login "${attempt}" # who sent it may be gone
        asi::refuse unavailable "the staged files did not arrive whole in ${attempt} (is the file system full?)"
    fi
    if [[ "$(sha256sum < staged.sha256)" != "${ASI_STAGED_SHA256}  -" ]] \
        || ! sha256sum --check --strict --quiet staged.sha256 > /dev/null; then
        asi::forget_login "${attempt}"
        asi::refuse integrity "a staged file in ${attempt} differs from its checksum"
    fi
    if [[ -e claim ]]; then
        asi::forget_login "${attempt}"
        asi::refuse conflict "a later try began while ${attempt} was staged"
    fi
    mkdir -m 0700 generations || asi::refuse unavailable "cannot write below ${attempt}"
    : > "generations/${ASI_GENERATION}"
    asi::fence
    asi::put_text attempt "${attempt}"
}

asi::main
