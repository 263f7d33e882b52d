# shellcheck shell=bash
# Reading the catalog: versions of aliases and records of the store, each with what its file is like now. Takes no
# lock: a version is complete before it has a number, and one rename makes it current.
# Used by catalog.sh and by prepare.sh (asi::put_candidates). Fields: `version.N`, `stored.N` (facts, one line) and
# the same with `.record` (the JSON as it is). Facts: what it is; then state, size, inode, mtime of the file.

ASI_VERSIONS=0
ASI_STORED=0

# asi::file_facts PATH - `STATE SIZE INODE MTIME`; STATE is file, missing or other (a link, a directory ...).
asi::file_facts() {
    if [[ -f "$1" && ! -L "$1" ]]; then
        stat -c 'file %s %i %Y' -- "$1" 2> /dev/null || printf 'missing 0 0 0\n'
    elif [[ -e "$1" || -L "$1" ]]; then
        printf 'other 0 0 0\n'
    else
        printf 'missing 0 0 0\n'
    fi
}

# asi::put_version NAME NUMBER CURRENT - facts: `NAME NUMBER CURRENT PUBLISHED STATE SIZE INODE MTIME LINK`.
asi::put_version() {
    local -r name="$1" number="$2" current="$3"
    local -r directory="${ASI_ROOT}/aliases/${name}.d/${number}"
    local link='' target='' published=''
    link="$(readlink -- "${directory}/image.sqsh" 2> /dev/null)" || return 0
    published="$(stat -c %Y -- "${directory}/record.json" 2> /dev/null)" || return 0
    target="${link}"
    if [[ "${link}" == ../../../store/sha256/* ]]; then
        target="${ASI_ROOT}/${link#../../../}"
    fi
    asi::put_text "version.${ASI_VERSIONS}" \
        "${name} ${number} ${current} ${published} $(asi::file_facts "${target}") ${target}"
    asi::put_file "version.${ASI_VERSIONS}.record" "${directory}/record.json" 1048577
    ASI_VERSIONS=$((ASI_VERSIONS + 1))
}

# asi::put_alias NAME HISTORY - the current version, and with HISTORY 1 what the name meant before.
asi::put_alias() {
    local -r name="$1" history="$2" directory="${ASI_ROOT}/aliases/$1.d"
    local -r current="$(asi::current "${directory}")"
    local number=''
    if [[ -z "${current}" || -L "${directory}" ]]; then
        return 0
    fi
    asi::put_version "${name}" "${current}" 1
    if [[ "${history}" == 1 ]]; then
        while IFS= read -r number; do
            # a higher number than the current one was never committed
            if ((number < current)); then
                asi::put_version "${name}" "${number}" 0
            fi
        done < <(asi::versions "${directory}")
    fi
}

# asi::put_current NAME - what the alias means now, if both its links lead there; nothing where it has to be made good.
asi::put_current() {
    local -r base="${ASI_ROOT}/aliases/$1"
    if [[ "$(readlink -- "${base}.sqsh")" == "$(asi::fixed_link "$1" sqsh)" \
        && "$(readlink -- "${base}.json")" == "$(asi::fixed_link "$1" json)" ]]; then
        asi::put_alias "$1" 0
    fi
}

# asi::put_stored SHA256 - facts: `SHA256 RECORDED STATE SIZE INODE MTIME PATH`.
asi::put_stored() {
    local -r base="${ASI_ROOT}/store/sha256/$1"
    local recorded=''
    recorded="$(stat -c %Y -- "${base}.json" 2> /dev/null)" || return 0
    asi::put_text "stored.${ASI_STORED}" "$1 ${recorded} $(asi::file_facts "${base}.sqsh") ${base}.sqsh"
    asi::put_file "stored.${ASI_STORED}.record" "${base}.json" 1048577
    ASI_STORED=$((ASI_STORED + 1))
}

# asi::naming DIGEST - records that name DIGEST, of the store and of the aliases, newest first. Only text is looked for.
asi::naming() {
    local path=''
    {
        find "${ASI_ROOT}/store/sha256" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}\.json' \
            -exec grep -lsF -- "\"$1\"" {} +
        find "${ASI_ROOT}/aliases" -mindepth 3 -maxdepth 3 -type f -regextype posix-extended \
            -regex '.*\.d/[1-9][0-9]{0,8}/record\.json' -exec grep -lsF -- "\"$1\"" {} +
    } | tr '\n' '\0' | xargs -0 -r stat -c '%Y %n' -- 2> /dev/null | sort -rn | cut -d ' ' -f 2-
}

# asi::put_candidates DIGEST - the newest record of each use (kind of inspection, options, platform, file ...) of DIGEST,
# at most 16 of them; the caller reads and judges. Many aliases of one image must not hide what another kind needs.
asi::put_candidates() {
    local path='' name='' number='' key='' count=0
    local -r records="$(asi::naming "$1")"
    local -A key_of=() seen=()
    while IFS= read -r -d '' path && IFS= read -r key; do
        key_of["${path}"]="${key}"
    done < <(printf '%s\n' "${records}" | tr '\n' '\0' | xargs -0 -r grep -sEHZo -- "${ASI_REUSE_KEY}")
    while IFS= read -r path; do
        if [[ -z "${path}" ]]; then
            break # there is none
        fi
        key="${key_of[${path}]-${path}}"
        if [[ -n "${seen[${key}]-}" ]]; then
            continue
        fi
        seen["${key}"]=1
        case "${path}" in
            */record.json)
                number="${path%/record.json}"
                name="${number%/*}"
                name="${name##*/}"
                asi::put_version "${name%.d}" "${number##*/}" 0
                ;;
            *.json)
                path="${path##*/}"
                asi::put_stored "${path%.json}"
                ;;
        esac
        if ((++count >= 16)); then
            return 0
        fi
    done < <(printf '%s\n' "${records}")
}
