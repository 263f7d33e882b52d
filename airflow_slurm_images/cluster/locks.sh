# shellcheck shell=bash
# shellcheck disable=SC2034 # ASI_LOCK_REASON is read by the callers
# Locks, modes and the clock of a workspace that several nodes and accounts share. Used by publish.sh and prune.sh
# on the login node and by store.sh in the job. Needs ASI_LOCKS (the directory of the locks) and ASI_GROUP.
#
# A lock is a directory: mkdir is atomic where flock may not be. It is held for a check and a few renames, never
# while bytes are copied. Order: a digest's lock before an alias's lock, never two of one kind.
# What a holder makes under its lock bears names of its own, and the next holder removes them first. So a holder
# that was given up for dead and wakes up again finds its files gone and cannot commit.

readonly ASI_LOCK_STALE=30 # seconds by the file server's clock after which an unchanged lock has lost its owner
readonly ASI_LOCK_WAIT=45  # seconds one call waits; longer than a dead lock lives

ASI_SELF="$(uname -n) $$ ${ASI_TOKEN:-${ASI_MARK:-}}"
ASI_HELD=()
ASI_LOCK_REASON=''

# asi::set_mode PATH SHARED PRIVATE - explicit mode and group, whatever the umask.
asi::set_mode() {
    if [[ -n "${ASI_GROUP}" ]]; then
        chgrp -- "${ASI_GROUP}" "$1" && chmod "$2" -- "$1"
    else
        chmod "$3" -- "$1"
    fi
}

# asi::shared_directory PATH - there with its final mode or not at all; two makers may race.
asi::shared_directory() {
    local -r path="$1"
    local new=''
    if [[ ! -e "${path}" && ! -L "${path}" ]]; then
        new="${path%/*}/.new-${ASI_SELF##* }-$$"
        mkdir -m 0700 -- "${new}" && asi::set_mode "${new}" 2770 0700 \
            && { mv -n -T -- "${new}" "${path}" 2> /dev/null || true; }
        rmdir -- "${new}" 2> /dev/null || true
    fi
    [[ -d "${path}" && ! -L "${path}" ]]
}

# asi::server_time - seconds since the epoch by the file server's own clock.
asi::server_time() {
    local -r clock="${ASI_LOCKS}/.clock-${ASI_SELF##* }-$$"
    { : > "${clock}"; } 2> /dev/null || return 1
    stat -c %Y -- "${clock}"
    rm -f -- "${clock}"
}

# asi::lock_owner LOCK - what its owner wrote, bounded; anybody of the group may have put something else there.
asi::lock_owner() {
    local owner=''
    if [[ -f "$1/owner" ]]; then # never a pipe, which would wait
        { IFS= read -r -n 256 owner < "$1/owner"; } 2> /dev/null || true
    fi
    printf '%s' "${owner}"
}

# asi::lock_identity LOCK - changes whenever the lock changes hands; empty when it is free.
asi::lock_identity() {
    local -r owner="$(asi::lock_owner "$1")"
    stat -c "%i %Y %Z ${owner//%/}" -- "$1" 2> /dev/null || true
}

# asi::discard_lock LOCK - what a lock is made of, and nothing that somebody else put there.
asi::discard_lock() {
    if [[ -d "$1" && ! -L "$1" ]]; then
        rm -f -- "$1/owner" 2> /dev/null
        rmdir -- "$1" 2> /dev/null
    fi
    [[ ! -e "$1" && ! -L "$1" ]]
}

# asi::lock_is_old LOCK
asi::lock_is_old() {
    local now='' since=''
    now="$(asi::server_time)" || return 1
    since="$(stat -c %Y -- "$1" 2> /dev/null)" || return 1
    ((now - since > ASI_LOCK_STALE))
}

# asi::take_lock LOCK - one try.
asi::take_lock() {
    local mode=0700
    if [[ -n "${ASI_GROUP}" ]]; then
        mode=2770 # so that another member can remove it when we die
    fi
    mkdir -m "${mode}" -- "$1" 2> /dev/null || return 1
    if ! { printf '%s\n' "${ASI_SELF}" > "$1/owner"; } 2> /dev/null; then
        asi::discard_lock "$1" || true
        return 1
    fi
    if [[ -n "${ASI_GROUP}" ]]; then
        chmod 0640 -- "$1/owner" 2> /dev/null || true # only for messages
    fi
}

# asi::break_lock LOCK IDENTITY - remove a lock that has lost its owner. One breaker at a time, and it looks again:
# the lock seen as dead may be gone and its name in use by somebody alive.
asi::break_lock() {
    local -r lock="$1" seen="$2" breaker="$1.break"
    if ! mkdir -m 0700 -- "${breaker}" 2> /dev/null; then
        if asi::lock_is_old "${breaker}"; then
            rmdir -- "${breaker}" 2> /dev/null || true
        fi
        return 0
    fi
    if [[ "$(asi::lock_identity "${lock}")" == "${seen}" ]] \
        && mv -T -- "${lock}" "${lock}.dead-${ASI_SELF##* }-$$" 2> /dev/null; then
        asi::discard_lock "${lock}.dead-${ASI_SELF##* }-$$" || true
    fi
    rmdir -- "${breaker}" 2> /dev/null || true
}

# asi::lock NAME [SECONDS] - take it, waiting; 1 and a reason in ASI_LOCK_REASON when that fails. A failed lock is a
# failure: the caller changes nothing.
asi::lock() {
    local -r lock="${ASI_LOCKS}/$1" end="$((SECONDS + ${2:-${ASI_LOCK_WAIT}}))"
    local now='' seen='' looks=0 refused=0
    if ! asi::shared_directory "${ASI_LOCKS}"; then
        ASI_LOCK_REASON="cannot make the directory ${ASI_LOCKS}"
        return 1
    fi
    while ((SECONDS < end)); do
        if asi::take_lock "${lock}"; then
            ASI_HELD+=("$1")
            return 0
        fi
        now="$(asi::lock_identity "${lock}")"
        if [[ -z "${now}" ]]; then
            if ((++refused >= 20)); then
                ASI_LOCK_REASON="cannot make ${lock}: $(mkdir -- "${lock}" 2>&1 && rmdir -- "${lock}")"
                return 1
            fi
        elif [[ "${now}" != "${seen}" ]]; then
            seen="${now}"
            looks=0
            refused=0
        elif ((++looks >= 10)) && asi::lock_is_old "${lock}"; then
            # Old by the server's clock alone is not enough: after an outage its living owner goes on first.
            asi::break_lock "${lock}" "${seen}"
            looks=0
        fi
        sleep 0.1
    done
    now="$(asi::lock_owner "${lock}")"
    ASI_LOCK_REASON="the lock ${lock} is held by ${now:-someone}"
    return 1
}

# asi::holds NAME - is the lock still ours?
asi::holds() {
    [[ "$(asi::lock_owner "${ASI_LOCKS}/$1")" == "${ASI_SELF}" ]]
}

# asi::holds_all - are all locks taken and not given back still ours?
asi::holds_all() {
    local held=''
    for held in "${ASI_HELD[@]+"${ASI_HELD[@]}"}"; do
        asi::holds "${held}" || return 1
    done
}

# asi::unlock NAME - give it back, if it is still ours.
asi::unlock() {
    local held=''
    local -a rest=()
    if asi::holds "$1"; then
        rm -f -- "${ASI_LOCKS}/$1/owner" && rmdir -- "${ASI_LOCKS}/$1" 2> /dev/null || true
    fi
    for held in "${ASI_HELD[@]+"${ASI_HELD[@]}"}"; do
        if [[ "${held}" != "$1" ]]; then
            rest+=("${held}")
        fi
    done
    ASI_HELD=("${rest[@]+"${rest[@]}"}")
}

# asi::unlock_all - for exit traps; the last one taken first.
asi::unlock_all() {
    while ((${#ASI_HELD[@]} > 0)); do
        asi::unlock "${ASI_HELD[${#ASI_HELD[@]} - 1]}"
    done
}
