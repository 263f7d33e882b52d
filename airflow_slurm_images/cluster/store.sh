# shellcheck shell=bash
# shellcheck disable=SC2034 # results and identity are read by the job's other files
# The store: immutable files named by their SHA-256. The job only adds; a crash leaves a partial file with the
# attempt's token in its name and nothing else. Needs locks.sh, process.sh and squashfs.sh.

ASI_RESULT_PATH=''
ASI_RESULT_SHA256=''
ASI_RESULT_SIZE=''
ASI_RESULT_INODE=''
ASI_RESULT_MTIME=''
ASI_RESULT_MANAGED=false
ASI_PARTIAL=''

# asi::keeps - does this run add to the store?
asi::keeps() {
    asi::imports || [[ "${ASI_COPY_TO_STORE}" == 1 ]]
}

# asi::moves - is a rename enough to bring the file into the store? Only for a file the job made itself, and where
# scratch and store are one file system.
asi::moves() {
    [[ -n "${ASI_WORK_OWNED}" && "$(stat -c %d -- "${ASI_SCRATCH}")" == "$(stat -c %d -- "${ASI_STORE}")" ]]
}

# asi::copies - is it to be copied there, then?
asi::copies() {
    asi::keeps && ! asi::moves
}

# asi::free_kib DIRECTORY - nothing where df has no number for it.
asi::free_kib() {
    df -Pk -- "$1" 2> /dev/null | awk 'NR == 2 && $4 ~ /^[0-9]+$/ { print $4 }'
}

# asi::require_space DIRECTORY KIB WHY
asi::require_space() {
    local free=''
    free="$(asi::free_kib "$1")" || free=''
    if [[ -n "${free}" ]] && ((free < $2)); then
        asi::fail "${E_NO_SPACE}" "only ${free} KiB free at $1, $3 $2"
    fi
}

# asi::check_space - enough for the work in scratch and store, before it starts.
asi::check_space() {
    asi::require_space "${ASI_SCRATCH}" "${ASI_MIN_FREE_KIB}" 'min_free asks for'
    if asi::keeps; then
        asi::require_space "${ASI_STORE}" "${ASI_MIN_FREE_KIB}" 'min_free asks for'
    fi
}

# asi::show_space - of scratch, or where it was to be, store and run directory.
asi::show_space() {
    local -r scratch="${ASI_SCRATCH:-${ASI_SCRATCH_ROOT:-${TMPDIR:-/tmp}}}"
    timeout --kill-after=5 20 df -k --output=source,size,avail,pcent,file -- "${scratch}" "${ASI_STORE}" "${ASI_ATTEMPT_DIR}" || true
}

# asi::full DIRECTORY - is there no room for a record of the largest size? Its status is that to end with, or 0.
asi::full() {
    local said=''
    said="$(timeout --kill-after=5 30 dd if=/dev/zero "of=$1/.room" bs=64K count=16 conv=fsync 2>&1)" || true
    rm -f -- "$1/.room"
    case "${said}" in
        *'No space left on device'*) return "${E_NO_SPACE}" ;;
        *'Disk quota exceeded'*) return "${E_QUOTA}" ;;
    esac
}

# asi::explain_disk STATUS - how full it is, where that may be why the job ends with STATUS. While an image runs, its
# output could tell of a full disk that is none; so the job tries itself, and returns the status to end with instead.
asi::explain_disk() {
    local status="$1"
    if [[ "${ASI_PHASE}" == inspect ]]; then
        case "${status}" in
            "${E_INTERNAL}" | "${E_START_FAILED}" | "${E_INSPECTION_FAILED}")
                asi::full "${ASI_SCRATCH}" && asi::full "${ASI_ATTEMPT_DIR}" || status=$?
                ;;
        esac
    fi
    case "${status}" in
        "${E_NO_SPACE}" | "${E_QUOTA}" | "${E_INTERNAL}" | "${E_SCRATCH}" | "${E_STORE_WRITE}") asi::show_space ;;
    esac
    return "${status}"
}

# asi::copy_and_hash - one read makes the copy and its hash. tee goes on after a write error and tells at the end. What it
# says is told when it is waited for: the reason of a failure is looked for in the phase that failed.
asi::copy_and_hash() {
    { tee -- "${ASI_PARTIAL}" <&"${ASI_FD}" | asi::sha256; } 2> "${ASI_ATTEMPT_DIR}/hash.log"
}

asi::hash_descriptor() {
    asi::sha256 <&"${ASI_FD}" 2> "${ASI_ATTEMPT_DIR}/hash.log"
}

asi::hash_partial() {
    asi::sha256 < "${ASI_PARTIAL}"
}

# asi::drop_partial - it never stays behind a failure that we see.
asi::drop_partial() {
    [[ -z "${ASI_PARTIAL}" ]] || rm -f -- "${ASI_PARTIAL}" || true
}

asi::cannot_store() {
    asi::fail "${E_STORE_WRITE}" "$1 (store ${ASI_STORE})"
}

# asi::begin_hash - SHA-256 in one read, through one descriptor, beside what follows. Where the bytes have to move to
# another file system the same read makes the copy, under a temporary name beside its final one.
asi::begin_hash() {
    local way=asi::hash_descriptor size=''
    exec {ASI_FD}< "${ASI_WORK}"
    ASI_IDENTITY="$(asi::identity "/proc/self/fd/${ASI_FD}")"
    ASI_PARTIAL="${ASI_STORE}/.partial-${ASI_TOKEN}-${SLURM_RESTART_COUNT}"
    rm -f -- "${ASI_STORE}/.partial-${ASI_TOKEN}"-* # of this attempt, before Slurm started it again
    if asi::copies; then
        size="$(asi::identified_size)"
        asi::require_space "${ASI_STORE}" "$((size / 1024 + 1))" 'the file needs'
        way=asi::copy_and_hash
    fi
    asi::begin hash "${way}"
}

# asi::end_hash - wait for it, unless that was done, and see that it is of the file that is there; a file of the store
# that is used again holds the bytes of its name.
asi::end_hash() {
    local status=0 size=''
    if [[ -n "${ASI_RESULT_SHA256}" ]]; then
        return 0
    fi
    asi::phase hash
    asi::end hash || status=$?
    cat -- "${ASI_ATTEMPT_DIR}/hash.log" >&2 || true
    asi::compare_identity
    if asi::copies; then
        size="$(asi::identified_size)"
        if ((status != 0)); then
            asi::cannot_store 'cannot copy into the store'
        elif [[ "$(stat -c %s -- "${ASI_PARTIAL}")" != "${size}" ]]; then
            asi::cannot_store 'the copy is incomplete'
        fi
    elif ((status != 0)); then
        asi::fail "${E_INTERNAL}" "hashing ${ASI_WORK} failed"
    fi
    ASI_RESULT_SHA256="$(< "${ASI_SCRATCH}/hash")"
    if [[ -n "${ASI_EXISTING_SHA256}" && "${ASI_RESULT_SHA256}" != "${ASI_EXISTING_SHA256}" ]]; then
        asi::fail "${E_STORE_CORRUPT}" "${ASI_WORK} holds other bytes than its name says; nothing was overwritten"
    fi
}

# asi::know_file - before a failure counts that may be one of another file than the one that was meant.
asi::know_file() {
    local -r phase="${ASI_PHASE}"
    if [[ -z "${ASI_RESULT_SHA256}" ]]; then
        asi::end_hash
        asi::phase "${phase}"
    fi
}

# asi::keep_result - name the file; for an import that is the moment it enters the store.
asi::keep_result() {
    local facts=''
    ASI_RESULT_PATH="${ASI_WORK}"
    if [[ -n "${ASI_EXISTING_SHA256}" ]]; then
        ASI_RESULT_MANAGED=true
    fi
    if asi::keeps; then
        asi::add_to_store
        ASI_RESULT_PATH="${ASI_STORE}/${ASI_RESULT_SHA256}.sqsh"
        ASI_RESULT_MANAGED=true
    fi
    facts="$(stat -c '%i %s %Y' -- "${ASI_RESULT_PATH}")" \
        || asi::fail "${E_STORE_WRITE}" "${ASI_RESULT_PATH} was there and cannot be looked at any more"
    read -r ASI_RESULT_INODE ASI_RESULT_SIZE ASI_RESULT_MTIME < <(printf '%s\n' "${facts}")
}

# asi::bring_over - the file under its temporary name in the store. mv copies where rename refuses, as between two
# mounts of one file system; then the copy is what has to be hashed.
asi::bring_over() {
    local -r inode="$(stat -c %i -- "${ASI_WORK}")"
    asi::in_background mv -T -- "${ASI_WORK}" "${ASI_PARTIAL}" || asi::cannot_store 'cannot move the file into the store'
    if [[ "$(stat -c %i -- "${ASI_PARTIAL}")" != "${inode}" ]]; then
        asi::in_background asi::hash_partial || asi::cannot_store 'cannot read the copy'
        if [[ "$(< "${ASI_SCRATCH}/answer")" != "${ASI_RESULT_SHA256}" ]]; then
            asi::cannot_store 'the copy has other bytes'
        fi
    fi
}

# asi::try_to_enter TARGET - under the digest's lock: rename without replacing; 1 when something is there already.
# Either way prune counts the file as wanted from now on.
asi::try_to_enter() {
    local -r lock="sha256-${ASI_RESULT_SHA256}"
    asi::lock "${lock}" || asi::cannot_store "${ASI_LOCK_REASON}"
    rm -f -- "${ASI_LOCKS%/*}/.unnamed/${ASI_RESULT_SHA256}" 2> /dev/null || true
    if [[ ! -e "$1" && ! -L "$1" ]]; then
        mv -n -T -- "${ASI_PARTIAL}" "$1" || true
    fi
    asi::unlock "${lock}"
    [[ ! -e "${ASI_PARTIAL}" ]]
}

# asi::add_to_store - a file that is there already must hold these very bytes; comparing takes long, so it is done
# without the lock, and the result counts only if the file is still there afterwards.
asi::add_to_store() {
    local -r target="${ASI_STORE}/${ASI_RESULT_SHA256}.sqsh"
    local round=0 status=0
    ASI_LOCKS="${ASI_STORE%/store/sha256}/aliases/.locks"
    if asi::moves; then
        asi::bring_over
    elif [[ ! -e "${ASI_PARTIAL}" ]]; then # a given file is nobody's to move
        asi::cannot_store 'the copy is gone'
    fi
    asi::set_mode "${ASI_PARTIAL}" 0440 0400 || asi::cannot_store 'cannot set mode and group of the file'
    sync -- "${ASI_PARTIAL}" || asi::cannot_store 'the file cannot be written to disk'
    for round in 1 2 3; do
        if asi::try_to_enter "${target}"; then
            sync -- "${ASI_STORE}" 2> /dev/null || true
            return 0
        fi
        status=0
        if [[ -f "${target}" && ! -L "${target}" ]]; then
            asi::in_background cmp -- "${ASI_PARTIAL}" "${target}" || status=$?
        elif [[ -e "${target}" || -L "${target}" ]]; then
            status=1
        fi
        if ((status == 1)) && [[ -e "${target}" || -L "${target}" ]]; then
            asi::fail "${E_STORE_CORRUPT}" "${target} is there with other bytes than its name says; nothing was overwritten"
        fi
        if ((status == 0)) && [[ -e "${target}" ]]; then
            asi::drop_partial
            asi::log "already in the store: ${target}"
            return 0
        fi
    done
    asi::cannot_store "cannot bring ${target} into the store after ${round} tries"
}
