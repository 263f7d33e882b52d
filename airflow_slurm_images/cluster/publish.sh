# shellcheck shell=bash
# Move an alias. Standard input: the image record. One rename of `current` commits link and record together; killed
# before it the alias means what it meant, killed after it the new image, and the next publisher removes what is left.
#
# Under the digest's lock the file is checked (prune cannot take it away meanwhile), under the alias's lock the
# version is written and committed.

ASI_RECORD=''
ASI_LINK=''    # text of the version's image.sqsh
ASI_DIGEST=''  # set when the target lies in the store
ASI_CURRENT='' # number of the committed version, empty when there is none
ASI_NUMBER=''
ASI_MOVED=1
ASI_PREVIOUS=''
ASI_HISTORY=''
ASI_ERRORS=''

asi::leave() {
    local -r status="$1"
    trap - EXIT
    if [[ -n "${ASI_HISTORY}" ]]; then
        rm -rf -- "${ASI_HISTORY}/.new-${ASI_MARK}" "${ASI_HISTORY}/.current-${ASI_MARK}"
    fi
    if [[ -n "${ASI_DIGEST}" ]]; then
        rm -f -- "${ASI_ROOT}/store/sha256/.partial-${ASI_DIGEST}.json-${ASI_MARK}"
    fi
    asi::unlock_all
    asi::end "${status}"
}

asi::lock_or_refuse() {
    asi::lock "$1" || asi::refuse unavailable "${ASI_LOCK_REASON}; the alias '${ASI_NAME}' was not moved"
}

# asi::keep_errors - what tools say (no space, quota, rights) in a file without a name, which no kill leaves behind.
asi::keep_errors() {
    local file=''
    if file="$(mktemp 2> /dev/null || mktemp /tmp/asi.XXXXXXXXXX)"; then
        exec {ASI_ERRORS}<> "${file}" 2>&"${ASI_ERRORS}"
        rm -f -- "${file}"
    fi
}

asi::cannot_write() {
    local said=''
    if [[ -n "${ASI_ERRORS}" ]]; then
        said="$(tail -n 1 "/proc/self/fd/${ASI_ERRORS}" | head -c 500)"
    fi
    asi::refuse unavailable "cannot write below ${ASI_ROOT}/$1: ${said:-space, quota or rights}; the alias '${ASI_NAME}' was not moved"
}

# asi::read_record - whole, or nothing happens: a broken connection ends a stream early and silently.
asi::read_record() {
    local sum=''
    ASI_RECORD="$(head -c 1048577 <&"${ASI_PAYLOAD}")"
    if ((${#ASI_RECORD} >= 1048576)); then
        asi::refuse integrity "the image record is larger than 1 MiB"
    fi
    sum="$(printf '%s\n' "${ASI_RECORD}" | sha256sum)"
    if [[ "${sum%% *}" != "${ASI_RECORD_SHA256}" ]]; then
        asi::refuse unavailable "the image record did not arrive whole; the alias '${ASI_NAME}' was not moved"
    fi
    if [[ ! "${ASI_RECORD}" =~ ^\{[[:space:]]*\"schema_version\": ]]; then
        asi::refuse integrity "the image record is not written in the order of its model"
    fi
}

# asi::meaning RECORD - `OCI_DIGEST SHA256 KIND` of a record, `-` for what it does not have. Keys are written in the
# order of the model, so all that is read here stands before anything the image itself could have chosen.
asi::meaning() {
    local -r head="${1:0:65536}" space='[[:space:]]*'
    local -r oci="\"oci_digest\":${space}\"(sha256:[0-9a-f]{64})\""
    local -r sha="^${space}\{[^{}]*\"sha256\":${space}\"([0-9a-f]{64})\""
    local -r kind="\"sqsh_sha256\":${space}\"[0-9a-f]{64}\",${space}\"inspection\":${space}\{${space}\"kind\":${space}\"([a-z]+)\""
    local a=- b=- c=-
    if [[ "${head%%\"sqsh\":*}" =~ ${oci} ]]; then
        a="${BASH_REMATCH[1]}"
    fi
    if [[ "${head#*\"sqsh\":}" =~ ${sha} ]]; then
        b="${BASH_REMATCH[1]}"
    fi
    if [[ "${head}" =~ ${kind} ]]; then
        c="${BASH_REMATCH[1]}"
    fi
    printf '%s %s %s\n' "${a}" "${b}" "${c}"
}

# asi::reuse_key RECORD - which imports it serves, in one word; nothing where it has none. An alias whose record serves
# others than the new one is written anew, or the import that was just made would be made again each time.
asi::reuse_key() {
    if [[ "${1:$((${#1} > 128 ? ${#1} - 128 : 0))}" =~ ${ASI_REUSE_KEY} ]]; then
        printf '%s\n' "${BASH_REMATCH[0]}"
    fi
}

# asi::locate_target - where the version's link leads; below the store it is relative, as nodes may mount the
# workspace elsewhere.
asi::locate_target() {
    local -r store="${ASI_ROOT}/store/sha256"
    local name="${ASI_TARGET#"${store}/"}"
    ASI_LINK="${ASI_TARGET}"
    if [[ "${name}" =~ ^([0-9a-f]{64})\.sqsh$ ]]; then
        ASI_DIGEST="${BASH_REMATCH[1]}"
        ASI_LINK="../../../store/sha256/${name}"
    fi
    if [[ "${ASI_MANAGED}" == 1 && "${ASI_DIGEST}" != "${ASI_SHA256}" ]]; then
        asi::refuse integrity "${ASI_TARGET} is not the store's name for SHA-256 ${ASI_SHA256}"
    fi
}

# asi::check_target - the file is the one the job saw. What prune has just put in the trash comes back.
asi::check_target() {
    local -r trash="${ASI_ROOT}/store/.trash"
    local -r item="${trash}/${ASI_DIGEST:-none}"
    local size='' inode='' mtime=''
    ls -a -- "${ASI_TARGET%/*}/" > /dev/null 2>&1 # refreshes a file server's attribute cache
    if [[ -n "${ASI_DIGEST}" && ! -e "${ASI_TARGET}" && ! -L "${ASI_TARGET}" ]] \
        && [[ ! -L "${trash}" && ! -L "${item}" && -f "${item}/${ASI_DIGEST}.sqsh" && ! -L "${item}/${ASI_DIGEST}.sqsh" ]]; then
        mv -n -T -- "${item}/${ASI_DIGEST}.sqsh" "${ASI_TARGET}" || true
    fi
    if [[ ! -e "${ASI_TARGET}" && ! -L "${ASI_TARGET}" ]]; then
        asi::refuse not_visible "${ASI_TARGET} is gone, or not visible on $(uname -n) yet; the alias '${ASI_NAME}' was not moved"
    fi
    if [[ ! -f "${ASI_TARGET}" || -L "${ASI_TARGET}" ]]; then
        asi::refuse integrity "${ASI_TARGET} is not a regular file any more; the alias '${ASI_NAME}' was not moved"
    fi
    read -r size inode mtime < <(stat -c '%s %i %Y' -- "${ASI_TARGET}")
    if [[ "${size}" != "${ASI_SIZE}" || "${inode}" != "${ASI_INODE}" || "${mtime}" != "${ASI_MTIME}" ]]; then
        asi::refuse integrity "${ASI_TARGET} is not the file the job saw (size, inode, mtime ${size} ${inode} ${mtime}, not ${ASI_SIZE} ${ASI_INODE} ${ASI_MTIME}); the alias '${ASI_NAME}' was not moved"
    fi
}

# asi::check_names - what stands at the alias's names must be ours.
asi::check_names() {
    local suffix=''
    if [[ -L "${ASI_HISTORY}" || (-e "${ASI_HISTORY}" && ! -d "${ASI_HISTORY}") ]]; then
        asi::refuse unsafe_workspace "${ASI_ROOT}/aliases/${ASI_HISTORY} is not a directory of ours"
    fi
    for suffix in sqsh json; do
        if [[ -e "${ASI_NAME}.${suffix}" || -L "${ASI_NAME}.${suffix}" ]] \
            && [[ "$(readlink -- "${ASI_NAME}.${suffix}")" != "$(asi::fixed_link "${ASI_NAME}" "${suffix}")" ]]; then
            asi::refuse conflict "${ASI_ROOT}/aliases/${ASI_NAME}.${suffix} is not a link of ours; nothing was overwritten"
        fi
    done
}

# asi::newest - number of the alias's newest version; nothing when there is none.
asi::newest() {
    asi::versions "${ASI_HISTORY}" | sed -n 1p
}

# asi::tidy - we hold the lock: whatever is half made was left by a dead publisher.
asi::tidy() {
    local number=''
    find "${ASI_HISTORY}" -mindepth 1 -maxdepth 1 \( -name '.new-*' -o -name '.current-*' -o -name '.old-*' \) \
        -exec rm -rf -- {} +
    ASI_CURRENT="$(asi::current "${ASI_HISTORY}")"
    number="$(asi::newest)"
    # One version beyond `current` was never committed. More of them: somebody removed `current`; keep them.
    if [[ -n "${number}" && "${number}" == "$((${ASI_CURRENT:-0} + 1))" ]]; then
        mv -T -- "${ASI_HISTORY}/${number}" "${ASI_HISTORY}/.old-${ASI_MARK}" \
            && rm -rf -- "${ASI_HISTORY}/.old-${ASI_MARK}"
        number="$(asi::newest)"
    fi
    ASI_NUMBER="$((${number:-0} + 1))"
}

# asi::record_of NUMBER
asi::record_of() {
    if [[ -f "${ASI_HISTORY}/$1/record.json" && ! -L "${ASI_HISTORY}/$1/record.json" ]]; then
        head -c 1048577 -- "${ASI_HISTORY}/$1/record.json"
    fi
}

# asi::differs NUMBER - does the new record mean another image than version NUMBER? The kind of inspection does not count.
asi::differs() {
    local -r before="$(asi::meaning "$(asi::record_of "$1")")" now="$(asi::meaning "${ASI_RECORD}")"
    [[ "$(readlink -- "${ASI_HISTORY}/$1/image.sqsh")" != "${ASI_LINK}" || "${before% *}" != "${now% *}" ]]
}

# asi::compare - against the committed version: sets ASI_MOVED and ASI_PREVIOUS; 1 when there is nothing to write.
asi::compare() {
    local before=''
    local -r now="$(asi::meaning "${ASI_RECORD}")"
    if [[ -z "${ASI_CURRENT}" || ! -d "${ASI_HISTORY}/${ASI_CURRENT}" ]]; then
        return 0
    fi
    ASI_PREVIOUS="$(asi::record_of "${ASI_CURRENT}")"
    before="$(asi::meaning "${ASI_PREVIOUS}")"
    if ! asi::differs "${ASI_CURRENT}"; then
        ASI_MOVED=0
        if [[ "${before}" == "${now}" \
            && "$(asi::reuse_key "${ASI_PREVIOUS}")" == "$(asi::reuse_key "${ASI_RECORD}")" ]]; then
            asi::repeat
            return 1
        fi
        return 0
    fi
    if [[ "${ASI_ON_CONFLICT}" == fail ]] && asi::conflicts "${before}" "${now}"; then
        asi::refuse conflict "the alias '${ASI_NAME}' means another image (${before}; wanted ${now}) and on_conflict is 'fail'"
    fi
}

# asi::conflicts BEFORE NOW - by OCI digest where both have one (a re-import makes other bytes of the same image),
# else by the file.
asi::conflicts() {
    if [[ "${1%% *}" != - && "${2%% *}" != - ]]; then
        [[ "${1%% *}" != "${2%% *}" ]]
    else
        [[ "${1% *}" != "${2% *}" ]]
    fi
}

# asi::repeat - nothing to write. If the committed record is this very one, the answer of an earlier call was lost:
# tell again what that call did.
asi::repeat() {
    local before=''
    ASI_NUMBER="${ASI_CURRENT}"
    if [[ "${ASI_PREVIOUS}" == "${ASI_RECORD}" ]]; then
        before="$(asi::versions "${ASI_HISTORY}" | grep -Fx -A 1 -- "${ASI_CURRENT}" | tail -n 1)"
        if [[ "${before}" == "${ASI_CURRENT}" ]] || asi::differs "${before}"; then
            ASI_MOVED=1
            ASI_PREVIOUS=''
            if [[ "${before}" != "${ASI_CURRENT}" ]]; then
                ASI_PREVIOUS="$(asi::record_of "${before}")"
            fi
        fi
    fi
}

# asi::write_record FILE - read-only and on disk.
asi::write_record() {
    printf '%s\n' "${ASI_RECORD}" > "$1" && asi::set_mode "$1" 0440 0400 && sync -- "$1"
}

# asi::write_store_record - the first record of a store file stays beside it for good.
asi::write_store_record() {
    local -r record="${ASI_ROOT}/store/sha256/${ASI_DIGEST}.json"
    local -r new="${ASI_ROOT}/store/sha256/.partial-${ASI_DIGEST}.json-${ASI_MARK}"
    rm -f -- "${ASI_ROOT}/store/sha256/.partial-${ASI_DIGEST}.json-"* 2> /dev/null || true
    if [[ ! -e "${record}" && ! -L "${record}" ]]; then
        asi::write_record "${new}" || asi::cannot_write store
        mv -n -T -- "${new}" "${record}" || asi::cannot_write store
    fi
    if [[ ! -f "${record}" || -L "${record}" ]] || ! grep -qF -- "\"${ASI_DIGEST}\"" "${record}"; then
        asi::refuse integrity "${record} is not the record of its file; nothing was overwritten"
    fi
}

# asi::still_ours - a publisher that stood still for long may have been given up for dead.
asi::still_ours() {
    asi::holds_all || asi::refuse unavailable "locks of this publisher were taken over; the alias '${ASI_NAME}' was not moved"
}

# asi::write_version - complete and on disk before it gets its number.
asi::write_version() {
    local -r new="${ASI_HISTORY}/.new-${ASI_MARK}"
    # The mode before the content: whoever finds what we left, when we died, can remove it.
    if ! { mkdir -m 0700 -- "${new}" && asi::set_mode "${new}" 2770 0700 && asi::write_record "${new}/record.json" \
        && ln -s -- "${ASI_LINK}" "${new}/image.sqsh" && sync -- "${new}"; }; then
        asi::cannot_write aliases
    fi
    asi::still_ours
    mv -T -- "${new}" "${ASI_HISTORY}/${ASI_NUMBER}" || asi::cannot_write aliases
}

# asi::make_links - the fixed links; they lead nowhere until a version is committed.
asi::make_links() {
    local suffix=''
    for suffix in sqsh json; do
        if [[ ! -L "${ASI_NAME}.${suffix}" ]]; then
            ln -s -- "$(asi::fixed_link "${ASI_NAME}" "${suffix}")" "${ASI_NAME}.${suffix}" || asi::cannot_write aliases
        fi
    done
}

# asi::commit - the one rename makes both links mean the new version.
asi::commit() {
    local -r new="${ASI_HISTORY}/.current-${ASI_MARK}"
    ln -s -- "${ASI_NUMBER}" "${new}" || asi::cannot_write aliases
    asi::still_ours
    mv -f -T -- "${new}" "${ASI_HISTORY}/current" || asi::cannot_write aliases
}

asi::main() {
    asi::begin
    trap 'asi::leave "$?"' EXIT
    trap 'exit 143' TERM INT HUP
    trap '' PIPE # the connection is gone: finish what was begun, the next call finds it done
    # shellcheck disable=SC2034 # read by locks.sh
    ASI_LOCKS="${ASI_ROOT}/aliases/.locks"
    asi::keep_errors
    asi::read_record
    cd "${ASI_ROOT}/aliases" || asi::refuse unavailable "cannot enter ${ASI_ROOT}/aliases"
    asi::locate_target
    if [[ -n "${ASI_DIGEST}" ]]; then
        asi::lock_or_refuse "sha256-${ASI_DIGEST}"
    fi
    asi::check_target
    asi::lock_or_refuse "alias-${ASI_NAME}"
    ASI_HISTORY="${ASI_NAME}.d"
    asi::check_names
    asi::shared_directory "${PWD}/${ASI_HISTORY}" || asi::cannot_write aliases
    asi::tidy
    if asi::compare; then
        if [[ "${ASI_MANAGED}" == 1 ]]; then
            asi::write_store_record
        fi
        if [[ -n "${ASI_DIGEST}" ]]; then
            rm -f -- ".unnamed/${ASI_DIGEST}" # prune counts anew from the day nothing names the file
        fi
        asi::write_version
        asi::make_links
        asi::commit
    else
        asi::make_links # somebody may have removed them
    fi
    asi::unlock_all
    sync -- "${ASI_HISTORY}" . 2> /dev/null || true
    asi::put_text alias_path "${ASI_ROOT}/aliases/${ASI_NAME}.sqsh"
    asi::put_text number "${ASI_NUMBER}"
    asi::put_text moved "${ASI_MOVED}"
    if [[ -n "${ASI_PREVIOUS}" ]]; then
        asi::put_text previous "${ASI_PREVIOUS}"
    fi
}

asi::main
