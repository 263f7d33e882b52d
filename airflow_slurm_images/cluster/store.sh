# shellcheck shell=bash
# The store: immutable files named by their SHA-256. The job only adds; a crash leaves a partial file with the
# attempt's token in its name and nothing else.

ASI_RESULT_PATH=''
ASI_RESULT_SHA256=''
ASI_RESULT_SIZE=''
ASI_RESULT_INODE=''
ASI_RESULT_MTIME=''
ASI_RESULT_MANAGED=false
ASI_PARTIAL=''

# asi::check_space - enough for the work in scratch and store, before it starts.
asi::check_space() {
    local place='' free=''
    for place in "${ASI_SCRATCH}" "${ASI_STORE}"; do
        free="$(df -Pk -- "${place}" | awk 'NR == 2 { print $4 }')"
        if [[ "${free}" =~ ^[0-9]+$ ]] && ((free < ASI_MIN_FREE_KIB)); then
            df -Pk -- "${ASI_SCRATCH}" "${ASI_STORE}" || true
            asi::fail "${E_NO_SPACE}" "only ${free} KiB free at ${place}, min_free asks for ${ASI_MIN_FREE_KIB}"
        fi
    done
}

# asi::keeps - does this run add to the store?
asi::keeps() {
    [[ "${ASI_OPERATION}" == import_oci || "${ASI_COPY_TO_STORE}" == 1 ]]
}

# asi::hash_once - SHA-256 in one read, through one descriptor. Where the bytes have to move to another file
# system the same read makes the copy, under a temporary name beside its final one.
asi::hash_once() {
    exec {ASI_FD}< "${ASI_WORK}"
    ASI_IDENTITY="$(asi::identity "/proc/self/fd/${ASI_FD}")"
    if asi::keeps; then
        ASI_PARTIAL="${ASI_STORE}/.partial-${ASI_TOKEN}"
        rm -f -- "${ASI_PARTIAL}"
    fi
    if asi::keeps && ! { [[ -n "${ASI_WORK_OWNED}" ]] && asi::same_file_system; }; then
        ASI_RESULT_SHA256="$(tee -- "${ASI_PARTIAL}" <&"${ASI_FD}" | asi::sha256)" \
            || { rm -f -- "${ASI_PARTIAL}"; asi::fail "${E_STORE_WRITE}" "cannot copy into the store ${ASI_STORE}"; }
        if [[ "$(stat -c %s -- "${ASI_PARTIAL}")" != "$(stat -L -c %s -- "${ASI_WORK}")" ]]; then
            rm -f -- "${ASI_PARTIAL}"
            asi::fail "${E_STORE_WRITE}" "the copy in the store ${ASI_STORE} is incomplete"
        fi
    else
        ASI_RESULT_SHA256="$(asi::sha256 <&"${ASI_FD}")" || asi::fail "${E_INTERNAL}" "hashing failed"
    fi
    asi::compare_identity
}

# asi::same_file_system - a rename from scratch to the store would be atomic.
asi::same_file_system() {
    [[ "$(stat -c %d -- "${ASI_SCRATCH}")" == "$(stat -c %d -- "${ASI_STORE}")" ]]
}

# asi::keep_result - name the file; for an import that is the moment it enters the store.
asi::keep_result() {
    ASI_RESULT_PATH="${ASI_WORK}"
    if asi::keeps; then
        asi::add_to_store
        ASI_RESULT_PATH="${ASI_STORE}/${ASI_RESULT_SHA256}.sqsh"
        ASI_RESULT_MANAGED=true
    fi
    read -r ASI_RESULT_INODE ASI_RESULT_SIZE ASI_RESULT_MTIME <<< "$(stat -c '%i %s %Y' -- "${ASI_RESULT_PATH}")"
}

# asi::add_to_store - rename without replacing; a file that is there must hold these very bytes.
asi::add_to_store() {
    local -r target="${ASI_STORE}/${ASI_RESULT_SHA256}.sqsh"
    local mode=0400
    if [[ ! -e "${ASI_PARTIAL}" ]]; then
        mv -n -- "${ASI_WORK}" "${ASI_PARTIAL}" || asi::fail "${E_STORE_WRITE}" "cannot write to the store ${ASI_STORE}"
    fi
    if [[ -n "${ASI_GROUP}" ]]; then
        mode=0440
        chgrp -- "${ASI_GROUP}" "${ASI_PARTIAL}"
    fi
    chmod "${mode}" -- "${ASI_PARTIAL}"
    sync -- "${ASI_PARTIAL}" 2> /dev/null || sync
    if [[ ! -e "${target}" && ! -L "${target}" ]]; then
        mv -n -T -- "${ASI_PARTIAL}" "${target}" || true
    fi
    if [[ -e "${ASI_PARTIAL}" ]]; then
        if [[ -L "${target}" || ! -f "${target}" ]] || ! cmp -s -- "${ASI_PARTIAL}" "${target}"; then
            rm -f -- "${ASI_PARTIAL}"
            asi::fail "${E_STORE_CORRUPT}" "${target} is there with other bytes than its name says; nothing was overwritten"
        fi
        rm -f -- "${ASI_PARTIAL}"
        asi::log "already in the store: ${target}"
    fi
}
