# shellcheck shell=bash
# Programs that stand before the real ones while Enroot imports, as it asks the registry again and believes what it gets.

# asi::mkdir ARGUMENT... - for mkdir(1), where the registry gives Enroot another image than it gave us, and where the
# manifest is not verified: a path that leads out of Enroot's working directory is not made.
asi::mkdir() {
    local path=''
    for path in "$@"; do
        if [[ "${path}" == "${PWD}/"* && "${path}" =~ (^|/)[.][.](/|$) ]]; then
            : > "${0%/*}/outside"
            exit 1
        fi
    done
    PATH="${PATH#"${0%/*}":}"
    exec mkdir "$@"
}

# asi::curl ARGUMENT... - for curl(1): of the verified manifest Enroot gets the bytes its digest names, or none, also
# not those of an error (it would take a list of manifests from one). Everything else is curl's own affair.
asi::curl() {
    local -r bin="${0%/*}" url="${!#}" body="${0%/*}/body.$$"
    local target=/dev/stdout code='' found='' status=0
    local -a arguments=()
    PATH="${PATH#"${bin}":}"
    # -I and -G: the questions about the login, of which Enroot keeps no bytes
    if [[ "${url}" != */manifests/"${ASI_PLATFORM_DIGEST}" || " $* " == *' -I '* || " $* " == *' -G '* ]]; then
        exec curl "$@"
    fi
    while (($# > 0)); do
        if [[ "$1" == -o ]]; then
            target="$2"
            shift
        else
            arguments+=("$1")
        fi
        shift
    done
    # A manifest has 4 MiB at most; a file and no pipe, so that what a failed try gave does not stand before the next's.
    code="$(ulimit -f 4096 && exec curl -o "${body}" "${arguments[@]}")" || status=$?
    if [[ -f "${body}" ]]; then
        found="$(sha256sum < "${body}")"
    fi
    if [[ "sha256:${found%% *}" == "${ASI_PLATFORM_DIGEST}" ]]; then
        cat -- "${body}" > "${target}" || status=23
    elif ((status == 0)) && [[ ! "${code}" =~ ^[45][0-9][0-9]$ ]]; then
        : > "${bin}/other-manifest"
        status=1
    fi
    rm -f -- "${body}"
    printf '%s' "${code}"
    exit "${status}"
}

# asi::put_guards DIRECTORY - fails where no program can run: scratch may be mounted noexec.
asi::put_guards() {
    local name=''
    local -a names=(mkdir)
    if [[ -n "${ASI_PLATFORM_DIGEST}" ]]; then
        names+=(curl)
    fi
    rm -rf -- "$1" # of a run of this job before a requeue
    mkdir -- "$1" || return
    for name in "${names[@]}"; do
        printf '#!/bin/bash -p\nset +o posix\nreadonly ASI_PLATFORM_DIGEST=%q\n%s\nasi::%s "$@"\n' \
            "${ASI_PLATFORM_DIGEST}" "$(declare -f "asi::${name}")" "${name}" > "$1/${name}" || return
        chmod 0700 -- "$1/${name}" || return
    done
    (cd "${ASI_SCRATCH}" && "$1/mkdir" "${PWD}/..") 2> /dev/null || true
    rm -- "$1/outside" 2> /dev/null
}

# asi::guard_import - put the guards where Enroot finds them first; sets ASI_GUARDS. No import goes without.
asi::guard_import() {
    for ASI_GUARDS in "${ASI_SCRATCH}/bin" "${ASI_ATTEMPT_DIR}/bin"; do
        if asi::put_guards "${ASI_GUARDS}"; then
            return 0
        fi
        rm -rf -- "${ASI_GUARDS}"
    done
    asi::fail "${E_SCRATCH}" "no program can run below ${ASI_SCRATCH} or ${ASI_ATTEMPT_DIR} (noexec?), which an import needs; set scratch_root"
}

# asi::check_guards - after the import: what they kept from Enroot ends the job, however Enroot ended.
asi::check_guards() {
    if [[ -e "${ASI_GUARDS}/outside" ]]; then
        asi::fail "${E_UNSAFE_IMAGE}" "the image's working directory leads out of the image; it was not imported"
    fi
    if [[ -e "${ASI_GUARDS}/other-manifest" ]]; then
        asi::fail "${E_MANIFEST}" "registry ${ASI_REGISTRY} gave Enroot other bytes than ${ASI_PLATFORM_DIGEST} names"
    fi
    rm -rf -- "${ASI_GUARDS}"
}
