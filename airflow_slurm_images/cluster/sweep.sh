# shellcheck shell=bash
# shellcheck disable=SC2034 # ASI_COMPLETE and ASI_REPORT are read by prune.sh
# First half of prune.sh: how it reports, and sweeping what dead jobs and dead commands left. Needs remote.sh and
# locks.sh; ASI_REPORT, ASI_NOW and ASI_COMPLETE are prune.sh's.

# asi::did WHAT ACTION BYTES PATH DETAIL
asi::did() {
    ASI_REPORT+="$1"$'\t'"$2"$'\t'"$3"$'\t'"${4//[^[:print:]]/?}"$'\t'"${5//[^[:print:]]/?}"$'\n'
}

# asi::for_real - is this more than a rehearsal?
asi::for_real() {
    [[ "${ASI_DRY_RUN}" != 1 ]]
}

# asi::in_time - a command over SSH stays short; the caller comes again for the rest.
asi::in_time() {
    if ((SECONDS < ASI_BUDGET_SECONDS)); then
        return 0
    fi
    ASI_COMPLETE=0
    return 1
}

# asi::older SECONDS TIME - is TIME at least SECONDS ago? What was made during this run is 0 seconds old.
asi::older() {
    local -r time="${2%%.*}"
    [[ "${time}" =~ ^-?(0|[1-9][0-9]{0,17})$ ]] || return 1 # what a file is called must never be calculated
    (((ASI_NOW > time ? ASI_NOW - time : 0) >= $1))
}

# asi::remove WHAT PATH BYTES DETAIL - one file or directory nobody needs.
asi::remove() {
    if asi::for_real && ! rm -rf -- "$2" 2> /dev/null; then
        asi::did "$1" kept "$3" "$2" 'cannot be removed by this account'
    else
        asi::did "$1" removed "$3" "$2" "$4"
    fi
}

# asi::prune_partials - of jobs and commands that died while writing; both times, as a rename sets only one. Their names
# are anybody's of the group: so lines end with a zero byte, and the path comes last.
asi::prune_partials() {
    local path='' bytes='' written='' changed=''
    while IFS=$'\t' read -r -d '' bytes written changed path; do
        asi::in_time || return 0
        if asi::older "${ASI_PARTIAL_SECONDS}" "${written}" && asi::older "${ASI_PARTIAL_SECONDS}" "${changed}"; then
            asi::remove partial "${path}" "${bytes}" "last written at ${written%%.*}"
        fi
    done < <(find "${ASI_STORE}" -maxdepth 1 -type f -name '.partial-*' -printf '%s\t%T@\t%C@\t%p\0'
        find "${ASI_ALIASES}" "${ASI_ROOT}/store" -mindepth 1 -maxdepth 2 -type d -empty -name '.new-*' \
            -printf '0\t%T@\t%C@\t%p\0')
    if asi::for_real; then
        find "${ASI_ALIASES}/.unnamed" -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}' -printf '%f\n' \
            2> /dev/null | while IFS= read -r path; do
            if [[ ! -e "${ASI_STORE}/${path}.sqsh" && ! -e "${ASI_STORE}/${path}.json" ]]; then
                rm -f -- "${ASI_ALIASES}/.unnamed/${path}"
            fi
        done
    fi
}

# asi::prune_locks - seen twice without a change, and old.
asi::prune_locks() {
    local path=''
    local -A seen=()
    while IFS= read -r -d '' path; do
        seen["${path}"]="$(asi::lock_identity "${path}")"
    done < <(find "${ASI_LOCKS}" -mindepth 1 -maxdepth 1 -printf '%p\0')
    if ((${#seen[@]} == 0)); then
        return 0
    fi
    sleep 1
    for path in "${!seen[@]}"; do
        if [[ -z "${seen[${path}]}" || "$(asi::lock_identity "${path}")" != "${seen[${path}]}" ]] \
            || ! asi::lock_is_old "${path}"; then
            continue
        fi
        case "${path##*/}" in
            .* | *.dead-* | *.break) asi::prune_lock "${path}" 'left by a dead command' ;;
            *)
                if asi::for_real; then
                    asi::break_lock "${path}" "${seen[${path}]}"
                fi
                asi::did lock removed 0 "${path}" 'its owner is gone'
                ;;
        esac
    done
}

# asi::prune_lock PATH DETAIL - an empty file (a look at the clock), or what a lock is made of.
asi::prune_lock() {
    if [[ -f "$1" && ! -L "$1" && ! -s "$1" ]]; then
        asi::remove lock "$1" 0 "$2"
    elif [[ ! -d "$1" || -L "$1" || -n "$(find "$1" -mindepth 1 -maxdepth 1 ! -name owner -print -quit)" ]] \
        || { asi::for_real && ! asi::discard_lock "$1"; }; then
        asi::did lock kept 0 "$1" 'holds more than a lock; look at it and move it away'
    else
        asi::did lock removed 0 "$1" "$2"
    fi
}

# asi::active_runs - run keys with a job that Slurm still knows; 1 when Slurm does not answer.
asi::active_runs() {
    asi::run squeue 30 squeue --noheader --all --states=all --user="$(id -un)" --format=%j
    ((ASI_STATUS == 0))
}

# asi::prune_runs - attempt directories of this account that nothing was written to for long, without a job.
asi::prune_runs() {
    local -r runs="${ASI_ROOT}/users/$(id -un)/runs"
    local path='' key='' newest='' bytes=''
    if [[ -z "${ASI_RUN_SECONDS}" || ! -d "${runs}" || -L "${runs}" ]]; then
        return 0
    fi
    if ! asi::active_runs; then
        asi::did run kept 0 "${runs}" 'squeue did not answer, so no run counts as ended'
        return 0
    fi
    while IFS= read -r path; do
        asi::in_time || return 0
        key="${path%/*}"
        newest="$(find "${path}" -maxdepth 2 -printf '%T@\n' 2> /dev/null | sort -rn | sed -n 1p)"
        if [[ $'\n'"${ASI_OUTPUT}"$'\n' == *$'\n'"asi-${key##*/}"$'\n'* ]] || [[ -z "${newest}" ]] \
            || ! asi::older "${ASI_RUN_SECONDS}" "${newest}"; then
            continue
        fi
        bytes="$(du -sk -- "${path}" 2> /dev/null | cut -f 1)"
        if asi::for_real; then
            chmod -R u+rwX -- "${path}" 2> /dev/null # an unpacked image may hold read-only directories
        fi
        asi::remove run "${path}" "$((${bytes:-0} * 1024))" "last written at ${newest%%.*}"
        if asi::for_real; then
            rmdir -- "${key}" 2> /dev/null || true
        fi
    done < <(find "${runs}" -mindepth 2 -maxdepth 2 -type d -regextype posix-extended \
        -regex '.*/[0-9a-f]{32}/[0-9a-f]{16}')
}

# asi::prune_layers - this account's layer cache, down to ASI_CACHE_BYTES, the longest unused first.
asi::prune_layers() {
    local -r cache="${ASI_ROOT}/users/$(id -un)/cache"
    local path='' bytes='' used='' sum=0
    if [[ -z "${ASI_CACHE_BYTES}" || ! -d "${cache}" || -L "${cache}" ]]; then
        return 0
    fi
    while IFS=$'\t' read -r used bytes path; do
        sum=$((sum + bytes))
        if ((sum > ASI_CACHE_BYTES)); then
            asi::remove layer "${path}" "${bytes}" "last used at ${used%%.*}"
        fi
    done < <(find "${cache}" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}' \
        -printf '%T@\t%s\t%p\n' | sort -rn)
}
