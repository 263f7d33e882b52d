# shellcheck shell=bash
# Housekeeping: drop old versions of aliases, store files that nothing has named for longer than the grace period,
# and what dead jobs and dead commands left. Says everything it did, one line each:
# `WHAT ACTION BYTES PATH DETAIL`, separated by tabs. With ASI_DRY_RUN 1 the same lines, and nothing is changed.
#
# A store file goes in three steps, each under the digest's lock after looking for names again: marked as unnamed,
# after the grace period moved to the trash (whoever publishes it takes it back), later deleted.

ASI_REPORT=''
ASI_NOW=0
ASI_COMPLETE=1
ASI_BLIND='' # set when there is an alias that this account cannot look into
declare -A ASI_NAMED=()

asi::leave() {
    local -r status="$1"
    trap - EXIT
    asi::unlock_all
    asi::put_text report "${ASI_REPORT}"
    asi::put_text complete "${ASI_COMPLETE}"
    asi::end "${status}"
}

# asi::hex_of TEXT - the digest in a link's text or a path below the store.
asi::hex_of() {
    if [[ "$1" =~ (^|/)([0-9a-f]{64})\.(sqsh|json)$ ]]; then
        printf '%s\n' "${BASH_REMATCH[2]}"
    fi
}

# asi::named_now SHA256 - does any version of any alias, committed or being written, name it at this moment? What cannot
# be looked into may.
asi::named_now() {
    local found=''
    found="$(find "${ASI_ALIASES}" -mindepth 3 -maxdepth 3 -name image.sqsh -lname "*$1.sqsh" -print -quit)" \
        || return 0
    [[ -n "${found}" ]]
}

# asi::mark SHA256 - the grace period starts (again) now.
asi::mark() {
    if asi::shared_directory "${ASI_ALIASES}/.unnamed"; then
        rm -f -- "${ASI_ALIASES}/.unnamed/$1"
        { : > "${ASI_ALIASES}/.unnamed/$1"; } 2> /dev/null
    fi
}

# asi::wanted RANK SUPERSEDED - keep a version that was replaced at SUPERSEDED and is the RANK-th newest?
asi::wanted() {
    local -r rank="$1" superseded="$2"
    if [[ -z "${ASI_KEEP_LAST}" && -z "${ASI_KEEP_SECONDS}" ]]; then
        return 0
    fi
    if [[ -n "${ASI_KEEP_LAST}" ]] && ((rank <= ASI_KEEP_LAST)); then
        return 0
    fi
    [[ -n "${ASI_KEEP_SECONDS}" ]] && ! asi::older "${ASI_KEEP_SECONDS}" "${superseded}"
}

# asi::drop_version DIRECTORY HEX - the digest counts as unnamed from now on, not from some earlier day.
asi::drop_version() {
    local -r old="${1%/*}/.old-${ASI_MARK}-${1##*/}"
    if [[ -n "$2" ]]; then
        asi::mark "$2"
    fi
    mv -T -- "$1" "${old}" 2> /dev/null && rm -rf -- "${old}" 2> /dev/null
}

# asi::prune_versions NAME - its lock is held, unless this is a rehearsal.
asi::prune_versions() {
    local -r history="${ASI_ALIASES}/$1.d"
    local -r current="$(asi::current "${history}")"
    local number='' hex='' superseded="${ASI_NOW}" published='' replaced=''
    local rank=0
    if asi::for_real; then
        find "${history}" -mindepth 1 -maxdepth 1 \( -name '.new-*' -o -name '.current-*' -o -name '.old-*' \) \
            -exec rm -rf -- {} +
    fi
    while IFS= read -r number; do
        hex="$(asi::hex_of "$(readlink -- "${history}/${number}/image.sqsh")")"
        published="$(stat -c %Y -- "${history}/${number}/record.json" 2> /dev/null)" || published="${ASI_NOW}"
        if [[ -z "${current}" || ! -d "${history}/${current}" ]]; then
            asi::did version kept 0 "${history}/${number}" 'the alias has no current version'
        elif ((number > current)); then
            asi::prune_version "${history}/${number}" "${hex}" 'never committed' && continue
        elif ((++rank > 1)) && ! asi::wanted "${rank}" "${superseded}"; then
            replaced="${superseded}"
            superseded="${published}"
            asi::prune_version "${history}/${number}" "${hex}" "replaced at ${replaced}" && continue
        fi
        superseded="${published}"
        if [[ -n "${hex}" ]]; then
            ASI_NAMED["${hex}"]=1
        fi
    done < <(asi::versions "${history}")
}

# asi::prune_version DIRECTORY HEX DETAIL
asi::prune_version() {
    if asi::for_real && ! asi::drop_version "$1" "$2"; then
        asi::did version kept 0 "$1" 'cannot be removed by this account'
        return 1
    fi
    asi::did version removed 0 "$1" "$3"
}

# asi::prune_aliases - every alias is read, whatever the time is: what is not seen to be named must not look unnamed.
asi::prune_aliases() {
    local name='' names='' hex=''
    while IFS= read -r -d '' name; do
        name="${name%.d}"
        if asi::for_real && asi::in_time && asi::lock "alias-${name}" 5; then
            asi::prune_versions "${name}"
            asi::unlock "alias-${name}"
        elif ! asi::for_real; then
            asi::prune_versions "${name}"
        else
            ASI_COMPLETE=0
        fi
    done < <(find "${ASI_ALIASES}" -mindepth 1 -maxdepth 1 -type d -name '[A-Za-z0-9]*.d' -printf '%f\0')
    names="$(find "${ASI_ALIASES}" -mindepth 3 -maxdepth 3 -name image.sqsh -type l -printf '%l\n')" || ASI_BLIND=1
    if asi::for_real; then
        while IFS= read -r hex; do
            hex="$(asi::hex_of "${hex}")"
            if [[ -n "${hex}" ]]; then
                ASI_NAMED["${hex}"]=1
            fi
        done < <(printf '%s\n' "${names}")
    fi
}

# asi::to_trash SHA256 - 0 moved; 1 not (named after all, locked, or not ours to move).
asi::to_trash() {
    local -r item="${ASI_ROOT}/store/.trash/$1"
    local suffix='' since=''
    asi::lock "sha256-$1" 5 || return 1
    # Who needs the file took the mark away under this lock, and another prune may have marked it anew.
    since="$(stat -c %Y -- "${ASI_ALIASES}/.unnamed/$1" 2> /dev/null)" || since="${ASI_NOW}"
    if [[ ! -e "${ASI_ALIASES}/.unnamed/$1" ]] || ! asi::older "${ASI_GRACE_SECONDS}" "${since}" \
        || asi::named_now "$1" || ! asi::shared_directory "${item%/*}" || ! asi::shared_directory "${item}"; then
        asi::unlock "sha256-$1"
        return 1
    fi
    for suffix in sqsh json; do
        if [[ -e "${ASI_STORE}/$1.${suffix}" ]]; then
            mv -f -T -- "${ASI_STORE}/$1.${suffix}" "${item}/$1.${suffix}" 2> /dev/null || break
        fi
    done
    rmdir -- "${item}" 2> /dev/null || true
    if [[ ! -e "${ASI_STORE}/$1.sqsh" ]]; then
        rm -f -- "${ASI_ALIASES}/.unnamed/$1"
    fi
    asi::unlock "sha256-$1"
    [[ ! -e "${ASI_STORE}/$1.sqsh" ]]
}

# asi::prune_image PATH BYTES OWNER - one store file (or a record whose file is gone).
asi::prune_image() {
    local -r path="$1" bytes="$2" owner="$3"
    local -r hex="$(asi::hex_of "$1")"
    local since=''
    if [[ -n "${ASI_NAMED[${hex}]-}" ]]; then
        if asi::for_real; then
            rm -f -- "${ASI_ALIASES}/.unnamed/${hex}"
        fi
        return 0
    fi
    if [[ -n "${ASI_BLIND}" ]]; then
        asi::did image kept "${bytes}" "${path}" 'an alias that this account cannot look into may name it'
        return 0
    fi
    since="$(stat -c %Y -- "${ASI_ALIASES}/.unnamed/${hex}" 2> /dev/null)" || since="${ASI_NOW}"
    if [[ ! -e "${ASI_ALIASES}/.unnamed/${hex}" ]] && asi::for_real; then
        asi::mark "${hex}"
    fi
    if ! asi::older "${ASI_GRACE_SECONDS}" "${since}"; then
        asi::did image waiting "${bytes}" "${path}" "unnamed since ${since}"
    elif ! asi::for_real || asi::to_trash "${hex}"; then
        asi::did image trashed "${bytes}" "${path}" "unnamed since ${since}"
    else
        asi::did image kept "${bytes}" "${path}" "named again, in use, or only its owner ${owner} may remove it"
    fi
}

asi::prune_store() {
    local path='' bytes='' owner=''
    while IFS=$'\t' read -r path bytes owner; do
        if [[ ! -e "${path}" || ("${path}" == *.json && -e "${path%.json}.sqsh") ]]; then
            continue # a record goes with its file
        fi
        asi::in_time || return 0
        asi::prune_image "${path}" "${bytes}" "${owner}"
    done < <(find "${ASI_STORE}" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}\.(sqsh|json)' \
        -printf '%p\t%s\t%u\n')
}

# asi::restore SHA256 - an alias names what lies in the trash; is the file back in the store?
asi::restore() {
    local -r item="${ASI_ROOT}/store/.trash/$1"
    local suffix=''
    for suffix in sqsh json; do
        if [[ -f "${item}/$1.${suffix}" && ! -L "${item}/$1.${suffix}" && ! -e "${ASI_STORE}/$1.${suffix}" ]]; then
            mv -n -T -- "${item}/$1.${suffix}" "${ASI_STORE}/$1.${suffix}" 2> /dev/null || true
        fi
    done
    [[ -e "${ASI_STORE}/$1.sqsh" ]]
}

# asi::forget ITEM SHA256 - delete what was moved there, and nothing that somebody else put beside it.
asi::forget() {
    rm -f -- "$1/$2.sqsh" "$1/$2.json" 2> /dev/null && rmdir -- "$1" 2> /dev/null
}

# asi::empty_item PATH SHA256 - under the digest's lock: it may have come back and gone again since it was listed.
asi::empty_item() {
    local -r path="$1" hex="$2"
    local since='' bytes=''
    since="$(stat -c %Y -- "${path}" 2> /dev/null)" || return 0
    bytes="$(stat -c %s -- "${path}/${hex}.sqsh" 2> /dev/null)" || bytes=0
    if [[ ! -e "${ASI_STORE}/${hex}.sqsh" ]] && asi::named_now "${hex}"; then
        if asi::for_real && ! asi::restore "${hex}"; then
            asi::did image kept "${bytes}" "${path}" 'an alias may name it, and it cannot be brought back'
        else
            asi::did image restored "${bytes}" "${ASI_STORE}/${hex}.sqsh" 'an alias names it'
        fi
    elif asi::older "${ASI_TRASH_SECONDS}" "${since}"; then
        if asi::for_real && ! asi::forget "${path}" "${hex}"; then
            asi::did image kept "${bytes}" "${path}" 'holds more than an image, or only its owner may remove it'
        else
            asi::did image removed "${bytes}" "${path}" "in the trash since ${since}"
        fi
    fi
    if asi::for_real; then
        rmdir -- "${path}" 2> /dev/null || true
    fi
}

# asi::empty_trash - what is named again comes back, what lay there long enough goes.
asi::empty_trash() {
    local path='' hex=''
    while IFS= read -r path; do
        asi::in_time || return 0
        hex="${path##*/}"
        if ! asi::for_real; then
            asi::empty_item "${path}" "${hex}"
        elif asi::lock "sha256-${hex}" 5; then
            asi::empty_item "${path}" "${hex}"
            asi::unlock "sha256-${hex}"
        fi
    done < <(find "${ASI_ROOT}/store/.trash" -mindepth 1 -maxdepth 1 -type d -regextype posix-extended \
        -regex '.*/[0-9a-f]{64}' 2> /dev/null)
}

asi::main() {
    local path=''
    asi::begin
    ASI_ROOT="$(realpath -e -- "${ASI_WORKSPACE}" 2> /dev/null)" \
        || asi::refuse no_workspace "workspace_root ${ASI_WORKSPACE} does not exist on $(uname -n)"
    ASI_ALIASES="${ASI_ROOT}/aliases"
    ASI_STORE="${ASI_ROOT}/store/sha256"
    ASI_LOCKS="${ASI_ALIASES}/.locks"
    for path in "${ASI_ALIASES}" "${ASI_ROOT}/store" "${ASI_STORE}"; do
        if [[ -L "${path}" || ! -d "${path}" ]]; then
            asi::refuse unsafe_workspace "${path} is not a directory; nothing was removed"
        fi
    done
    trap 'asi::leave "$?"' EXIT
    trap 'exit 143' TERM INT HUP
    trap '' PIPE
    if ! { asi::shared_directory "${ASI_LOCKS}" && ASI_NOW="$(asi::server_time)"; }; then
        asi::refuse unavailable "cannot write below ${ASI_ALIASES}; nothing was removed"
    fi
    asi::prune_locks
    asi::prune_aliases
    asi::prune_store
    asi::empty_trash
    asi::prune_partials
    asi::prune_runs
    asi::prune_layers
}

asi::main
