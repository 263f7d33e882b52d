# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Looking at a SquashFS file from outside: is it whole, what is its hash, what would starting it touch, what does
# it say about itself. Nothing here runs a byte of the image or writes a file whose name the image chose.

readonly ASI_FACT_LIMIT=262144 # bytes kept of each file read out of the image
readonly ASI_PROGRAMS='bash dash ash sh busybox toybox env cat ls' # whose architecture is that of the image, best first
readonly ASI_TARGETS='.lock .enroot etc etc/fstab etc/environment etc/rc proc dev dev/null dev/zero dev/urandom sys tmp asi'
ASI_FD=''
ASI_IDENTITY=''

# asi::identity PATH - device, inode, size, mtime, ctime with their fractions: changes when the file does.
asi::identity() {
    stat -L -c '%d %i %s %y %z' -- "$1"
}

# asi::superblock_bytes FILE OFFSET COUNT - little-endian number out of the superblock.
asi::superblock_number() {
    local -r file="$1" offset="$2" count="$3"
    local -a byte=()
    local index=0 number=0
    read -r -a byte <<< "$(od -An -v -tu1 -j "${offset}" -N "${count}" -w16 -- "${file}")"
    ((${#byte[@]} == count)) || return 1
    for ((index = count - 1; index >= 0; index--)); do
        number=$((number * 256 + byte[index]))
    done
    printf '%s\n' "${number}"
}

# asi::broken TEXT - unless it is another file by now: then it is that what happened.
asi::broken() {
    asi::compare_identity
    asi::fail "${E_BROKEN_SQUASHFS}" "$1"
}

# asi::check_squashfs FILE - whole: magic, size not below the superblock's bytes_used, and a full listing
# (`unsquashfs -s` alone passes a truncated file).
asi::check_squashfs() {
    local -r file="$1"
    local magic='' used='' size=''
    magic="$(asi::superblock_number "${file}" 0 4)" || magic=0
    if ((magic != 0x73717368)); then
        asi::broken "not a SquashFS file: ${file}"
    fi
    used="$(asi::superblock_number "${file}" 40 8)" || used=-1
    read -r _ _ size _ <<< "${ASI_IDENTITY}"
    if ((used < 96 || size < used)); then
        asi::broken "the SquashFS file is incomplete: ${size} bytes of ${used}"
    fi
    ASI_READER=asi::read_listing
    asi::tool "${ASI_SCRATCH}/listing" 900 unsquashfs -lls "${file}" \
        || asi::broken "the SquashFS file cannot be listed: $(grep '^error ' "${ASI_SCRATCH}/listing" | tail -n 3)"
    ASI_READER=asi::bounded
    asi::require_listing
}

# asi::require_listing - what a full disk cut must not pass for a listing without a dangerous entry.
asi::require_listing() {
    local lines='' last=''
    lines="$(wc -l < "${ASI_SCRATCH}/listing")"
    last="$(tail -n 1 -- "${ASI_SCRATCH}/listing")"
    if [[ "${last}" != "end $((lines - 1))" ]]; then
        asi::fail "${E_INTERNAL}" "the listing of the image was not kept whole in ${ASI_SCRATCH}"
    fi
}

# asi::read_listing FILE - reduce a listing of any length to what is asked of it: the entries that Enroot would
# open before the image is the root directory (`target`), programs that tell the architecture (`program RANK PATH`, the
# best rank first), the last errors (`error`); at the end the number of these lines (`end`).
# Old mawk, the awk of Debian and Ubuntu, takes no `{3}` in an expression.
asi::read_listing() {
    awk -v names="${ASI_TARGETS}" -v programs="${ASI_PROGRAMS}" '
        function tell(line) { print line; told++ }
        BEGIN {
            count = split(names, list, " "); for (i = 1; i <= count; i++) target[list[i]] = 1
            known = split(programs, order, " "); for (i = 1; i <= known; i++) rank[order[i]] = i
        }
        !/^[-dlbcps][r-][w-][xsS-][r-][w-][xsS-][r-][w-][xtT-] / || !/squashfs-root\// { if (!/squashfs-root$/ && NF) last = $0; next }
        {
            type = substr($0, 1, 1)
            # From the first mention on: the target of a link may hold another one, to hide what the link is.
            path = substr($0, index($0, " squashfs-root/") + 15)
            if (type == "l") {
                link = path
                sub(/ -> .*$/, "", path)
                if (path ~ /^(usr\/)?bin\/sh$/) { sub(/^.*\//, "", link); shell = link }
            }
            if (path in target) tell("target " type " " path)
            if (type == "-" && /^...x/ && path ~ /^[A-Za-z0-9._+][A-Za-z0-9._+\/-]*$/) { # no option
                name = path
                sub(/^.*\//, "", name)
                if (path ~ /^(usr\/)?lib[^\/]*\/([^\/]+\/)?ld-[^\/]*[.]so[^\/]*$/) { if (loaders < 4) loader[++loaders] = path }
                else if (path !~ /^(usr\/)?s?bin\/[^\/]+$/) { if (others < 8) other[++others] = path }
                else if (name in rank) program[name] = path
                else if (usuals < 12) usual[++usuals] = path
            }
        }
        END {
            if (shell in program) tell("program 0 " program[shell])
            for (i = 1; i <= known; i++) if (order[i] in program) tell("program " i " " program[order[i]])
            for (i = 1; i <= loaders; i++) tell("program 50 " loader[i])
            for (i = 1; i <= usuals; i++) tell("program 99 " usual[i])
            for (i = 1; i <= others; i++) tell("program 99 " other[i])
            if (last != "") tell("error " substr(last, 1, 300))
            print "end", told + 0
        }
    ' > "$1"
}

readonly ASI_PYTHON_SHA256='
import _hashlib, sys
digest = _hashlib.openssl_sha256()
for part in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
    digest.update(part)
print(digest.hexdigest())
'

# asi::pick_hash_tool - the fastest present: OpenSSL uses the processor's SHA instructions, and coreutils where they are
# built with it, and Python.
asi::pick_hash_tool() {
    for ASI_HASH_TOOL in openssl sha256sum python3; do
        if [[ "${ASI_HASH_TOOL}" == sha256sum ]] && ! grep -q libcrypto -- "$(command -v sha256sum)"; then
            continue
        fi
        if asi::sha256 < /dev/null > /dev/null 2>&1; then
            asi::log "hashing with ${ASI_HASH_TOOL}"
            return 0
        fi
    done
    ASI_HASH_TOOL=sha256sum
    asi::log 'hashing with sha256sum, which is slow; OpenSSL or a Python built with it are faster'
}

# asi::sha256 - hex SHA-256 of standard input.
asi::sha256() {
    local line=''
    case "${ASI_HASH_TOOL}" in
        openssl) line="$(openssl dgst -sha256 -r)" ;;
        python3) line="$(python3 -I -c "${ASI_PYTHON_SHA256}")" ;;
        *) line="$(sha256sum)" ;;
    esac
    line="${line%% *}"
    [[ "${line}" =~ ^[0-9a-f]{64}$ ]] || return 1
    printf '%s\n' "${line}"
}

# asi::compare_identity - the path still names the file that was hashed, and nobody wrote to it.
asi::compare_identity() {
    local now='' held=''
    now="$(asi::identity "${ASI_WORK}" 2> /dev/null)" || now=gone
    held="$(asi::identity "/proc/self/fd/${ASI_FD}")"
    if [[ "${now}" != "${ASI_IDENTITY}" || "${held}" != "${ASI_IDENTITY}" ]]; then
        asi::fail "${E_CHANGED}" "${ASI_WORK} changed during inspection"
    fi
}

# asi::refuse_unsafe - Enroot opens these paths in the image as the user, before the image is the root directory;
# a link there would lead to the host, a pipe would hang.
asi::refuse_unsafe() {
    local what='' type='' path=''
    asi::require_listing
    while read -r what type path; do
        if [[ "${what}" == target && "${type}" != [-d] ]]; then
            asi::know_file
            asi::fail "${E_UNSAFE_IMAGE}" "/${path} is neither a regular file nor a directory (type '${type}')"
        fi
    done < "${ASI_SCRATCH}/listing"
}

# asi::cat PATH BYTES FILE COMMAND... - what COMMAND makes of the first BYTES of PATH in the image, into FILE; nothing
# where there is no such file.
asi::cat() {
    local -r path="$1" bytes="$2" file="$3"
    local -a status=(0 0 0)
    shift 3
    timeout 60 unsquashfs -cat "${ASI_WORK}" "${path}" 2> /dev/null | head -c "${bytes}" | "$@" > "${file}" \
        || status=("${PIPESTATUS[@]}")
    if ((status[2] != 0)); then
        asi::fail "${E_INTERNAL}" "cannot write ${file}"
    fi
}

# asi::cat_fact NAME PATH... - first of PATH that is a regular file in the image, bounded, into output/static/NAME.
asi::cat_fact() {
    local -r target="${ASI_ATTEMPT_DIR}/output/static/$1"
    local path=''
    shift
    for path in "$@"; do
        asi::cat "${path}" "${ASI_FACT_LIMIT}" "${target}" cat
        if [[ -s "${target}" ]]; then
            return 0
        fi
    done
    rm -f -- "${target}"
}

# asi::cat_elf FILE - the head of a program that tells the architecture of the image. Of one rank all have to agree: an
# image may carry tools for several machines.
asi::cat_elf() {
    local -r elf="$1" new="${ASI_SCRATCH}/elf"
    local what='' rank='' path='' head='' machine='' found=''
    while read -r what rank path; do
        if [[ "${what}" != program ]]; then
            continue
        elif [[ -n "${found}" && "${found%% *}" != "${rank}" ]]; then
            break
        fi
        asi::cat "${path}" 64 "${new}" cat
        head="$(od -An -v -tx1 -N 20 -- "${new}" | tr -d ' \n')"
        if [[ "${head}" != 7f454c46* ]]; then
            continue
        fi
        machine="${rank} ${head:8:4}${head:36:4}" # bits, byte order, processor
        if [[ -n "${found}" && "${found}" != "${machine}" ]]; then
            rm -f -- "${elf}"
            return 0
        fi
        found="${machine}"
        cp -- "${new}" "${elf}" || asi::fail "${E_INTERNAL}" "cannot write ${elf}"
    done < "${ASI_SCRATCH}/listing"
}

# asi::read_static_facts - what the image says about itself, as bytes; core/image_facts.py reads them.
asi::read_static_facts() {
    local -r static="${ASI_ATTEMPT_DIR}/output/static"
    head -c 96 -- "${ASI_WORK}" > "${static}/superblock" || asi::fail "${E_INTERNAL}" "cannot write ${static}/superblock"
    asi::cat_fact os-release usr/lib/os-release etc/os-release
    asi::cat_fact environment etc/environment
    asi::cat_fact rc etc/rc
    asi::cat_elf "${static}/elf"
    asi::cat var/lib/dpkg/status 134217728 "${static}/dpkg-count" \
        awk '/^Status: .* installed$/ { n++ } END { if (n) print n }'
}
