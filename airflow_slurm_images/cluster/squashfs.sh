# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Looking at a SquashFS file from outside: is it whole, what is its hash, what would starting it touch, what does
# it say about itself. Nothing here runs a byte of the image or writes a file whose name the image chose.

readonly ASI_FACT_LIMIT=262144 # bytes kept of each file read out of the image
readonly ASI_PROGRAMS='bash dash ash sh busybox toybox env cat ls' # whose architecture is that of the image, best first
readonly ASI_COMPRESSIONS=([1]=gzip [2]=lzma [3]=lzo [4]=xz [5]=lz4 [6]=zstd) # as the superblock numbers them
readonly ASI_TARGETS='.lock .enroot etc etc/fstab etc/environment etc/rc proc dev dev/null dev/zero dev/urandom sys tmp asi'
ASI_FD=''
ASI_IDENTITY=''

# asi::identity PATH - device, inode, size, mtime, ctime with their fractions: changes when the file does.
asi::identity() {
    stat -L -c '%d %i %s %y %z' -- "$1"
}

# asi::identified_size - bytes of the file behind ASI_IDENTITY.
asi::identified_size() {
    local rest="${ASI_IDENTITY#* }"
    rest="${rest#* }"
    printf '%s\n' "${rest%% *}"
}

# asi::superblock_number FILE OFFSET COUNT - little-endian number out of the superblock.
asi::superblock_number() {
    local -r file="$1" offset="$2" count="$3"
    local -a byte=()
    local index=0 number=0
    read -r -a byte < <(od -An -v -tu1 -j "${offset}" -N "${count}" -w16 -- "${file}")
    ((${#byte[@]} == count)) || return 1
    for ((index = count - 1; index >= 0; index--)); do
        number=$((number * 256 + byte[index]))
    done
    printf '%s\n' "${number}"
}

# asi::refuse CODE TEXT - unless it is another file by now: then it is that what happened.
asi::refuse() {
    asi::compare_identity
    asi::fail "$@"
}

# asi::check_superblock FILE - of SquashFS 4, and not longer than the file. Versions before 4 lack what is read here (in
# the byte order of their machine, too), and neither squashfuse nor we read them: not broken, but of no use.
asi::check_superblock() {
    local -r file="$1"
    local magic='' version='' used='' size=''
    magic="$(asi::superblock_number "${file}" 0 4)" || magic=0
    version="$(asi::superblock_number "${file}" 28 2)" || version=0
    if ((magic == 0x68737173)) || ((magic == 0x73717368 && version > 0 && version < 4)); then
        asi::refuse "${E_UNSUPPORTED_SQUASHFS}" "a SquashFS file of a version before 4, which is not read: ${file}"
    fi
    if ((magic != 0x73717368)); then
        asi::refuse "${E_BROKEN_SQUASHFS}" "not a SquashFS file: ${file}"
    fi
    used="$(asi::superblock_number "${file}" 40 8)" || used=-1
    size="$(asi::identified_size)"
    if ((used < 96 || size < used)); then
        asi::refuse "${E_BROKEN_SQUASHFS}" "the SquashFS file is incomplete: ${size} bytes of ${used}"
    fi
}

# asi::check_squashfs FILE - whole, as far as a superblock and a full listing tell (`unsquashfs -s` alone passes a
# truncated file), and one that the tools of this node can read.
asi::check_squashfs() {
    local -r file="$1"
    local compression='' status=0
    asi::check_superblock "${file}"
    ASI_READER=asi::read_listing
    asi::tool "${ASI_SCRATCH}/listing" 900 unsquashfs -lls "${file}" || status=$?
    ASI_READER=asi::bounded
    if ((status == 0)); then
        asi::require_listing
    elif grep -qx unsupported -- "${ASI_SCRATCH}/listing"; then
        compression="$(asi::superblock_number "${file}" 20 2)" || compression=0
        asi::refuse "${E_UNSUPPORTED_SQUASHFS}" "unsquashfs on node ${SLURMD_NODENAME} cannot read the compression of ${file}: ${ASI_COMPRESSIONS[compression]-number ${compression}}"
    elif [[ " 124 130 137 143 " == *" ${status} "* ]] \
        || grep -Eiq '^error .*(Input/output error|Stale file handle)' -- "${ASI_SCRATCH}/listing"; then
        # Its time was up, it was killed, or the file server failed: the file may be well.
        asi::refuse "${E_UNREADABLE}" "${file} could not be listed on node ${SLURMD_NODENAME} (status ${status}) $(asi::listed error)"
    else
        asi::refuse "${E_BROKEN_SQUASHFS}" "the SquashFS file cannot be listed: $(asi::listed error)"
    fi
}

# asi::trial - make and read an empty SquashFS file; only what is said of a failure comes out.
asi::trial() {
    local -r directory="${ASI_SCRATCH}/trial"
    local -a options=()
    read -r -a options < <(asi::squash_options)
    mkdir -- "${directory}"
    {
        setpriv --pdeathsig KILL timeout --kill-after=2 10 mksquashfs "${directory}" "${directory}.sqsh" "${options[@]}" > /dev/null \
            && setpriv --pdeathsig KILL timeout --kill-after=2 10 unsquashfs -lls "${directory}.sqsh" > /dev/null
    } 2>&1
}

# asi::try_squash_options - before a long import: can this node write, and read, what the options ask for?
asi::try_squash_options() {
    local status=0 code="${E_UNSUPPORTED_SQUASHFS}"
    asi::in_background asi::trial || status=$?
    case "${status}" in
        0 | 124 | 137) return 0 ;; # a slow node is no answer
    esac
    asi::full "${ASI_SCRATCH}" || code=$?
    asi::fail "${code}" "squashfs-tools on node ${SLURMD_NODENAME} cannot make and read a file with '${ASI_SQUASH_OPTIONS}': $(grep . "${ASI_SCRATCH}/answer" | head -n 2 | head -c 300 | tr '\n' ' ')"
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
# best rank first), where os-release is by the image's own links (`os-release PATH`), the packages of a Debian image
# without a package manager (`packages`), KiB to unpack it to (`unpacked`); of a failure the line that tells most
# (`error`), and whether it was the compression (`unsupported`); at the end the number of these lines (`end`).
# Old mawk, the awk of Debian and Ubuntu, takes no `{3}` in an expression.
asi::read_listing() {
    awk -v names="${ASI_TARGETS}" -v programs="${ASI_PROGRAMS}" '
        function tell(line) { print line; told++ }
        function resolve(rest,    done, name, place, hops) { # never out of the image, as inside it
            while (rest != "") {
                name = rest
                sub(/\/.*$/, "", name)
                if (!sub(/^[^\/]*\/+/, "", rest)) rest = ""
                if (name == "" || name == ".") continue
                place = (done == "" ? name : done "/" name)
                if (name == "..") sub(/\/?[^\/]*$/, "", done)
                else if (!(place in link)) done = place
                else if (++hops > 40) return ""
                else {
                    if (link[place] ~ /^\//) done = ""
                    rest = link[place] "/" rest
                }
            }
            return done
        }
        BEGIN {
            count = split(names, list, " "); for (i = 1; i <= count; i++) target[list[i]] = 1
            known = split(programs, order, " "); for (i = 1; i <= known; i++) rank[order[i]] = i
        }
        /squashfs-root/ { entries++ }
        !/^[-dlbcps][r-][w-][xsS-][r-][w-][xsS-][r-][w-][xtT-] / || !/squashfs-root\// {
            if (!entries && /this is unsupported by this version/) unsupported = 1 # before a name of the image could say it
            if (/squashfs-root$/ || !NF) next
            if (/FATAL|ERROR|rror|ailed|orrupt|unsupported/) telling = $0
            last = $0
            next
        }
        {
            type = substr($0, 1, 1)
            # From the first mention on: the target of a link may hold another one, to hide what the link is.
            start = index($0, " squashfs-root/")
            path = substr($0, start + 15)
            if (type == "l") {
                whole = path
                sub(/ -> .*$/, "", path)
                if (length(whole) < 1024 && ++links <= 100000) link[path] = substr(whole, length(path) + 5)
                if (path ~ /^(usr\/)?bin\/sh$/) { sub(/^.*\//, "", whole); shell = whole }
            }
            if (path in target) tell("target " type " " path)
            if (type == "-") {
                if (path ~ /^var\/lib\/dpkg\/status[.]d\/[^\/]+$/ && path !~ /[.]md5sums$/) packages++
                # A name of a user may hold blanks. A hard link looks like a file of its own; these logs are mostly holes.
                count = split(substr($0, 1, start), column, " ")
                size = column[count - 2]
                twin = size " " column[count - 1] " " column[count]
                if (path !~ /^var\/log\/(lastlog|faillog|tallylog)$/ && (size < 1048576 || !(twin in big))) unpacked += int((size + 4095) / 4096) * 4
                if (size >= 1048576) big[twin] = 1
            }
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
            count = split("etc/os-release usr/lib/os-release", list, " ") # in the order of os-release(5)
            for (i = 1; i <= count; i++) {
                path = resolve(list[i])
                if (path ~ /^[A-Za-z0-9._+][A-Za-z0-9._+\/-]*$/) tell("os-release " path)
            }
            if (packages) tell("packages " packages)
            tell(sprintf("unpacked %.0f", unpacked))
            if (unsupported) tell("unsupported")
            if (telling != "") last = telling
            if (last != "") tell("error " substr(last, 1, 300))
            print "end", told + 0
        }
    ' > "$1"
}

# asi::listed WORD - what the listing says under this word, one a line.
asi::listed() {
    sed -n "s/^$1 //p" "${ASI_SCRATCH}/listing"
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
    # shellcheck disable=SC2046 # the paths hold no blanks
    asi::cat_fact os-release $(asi::listed os-release)
    asi::cat_fact environment etc/environment
    asi::cat_fact rc etc/rc
    asi::cat_elf "${static}/elf"
    asi::cat var/lib/dpkg/status 134217728 "${static}/dpkg-count" \
        awk '/^Status: .* installed$/ { n++ } END { if (n) print n }'
    if [[ ! -s "${static}/dpkg-count" ]]; then
        asi::listed packages > "${static}/dpkg-count"
    fi
}
