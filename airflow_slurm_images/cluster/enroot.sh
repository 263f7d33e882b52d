# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Importing with Enroot into a private place, finding the file of an inspection, and what both need of the node. Needs
# process.sh, squashfs.sh and guards.sh.

ASI_WORK=''       # the .sqsh being worked on
ASI_WORK_OWNED='' # set when the job made that file itself
ASI_ENROOT=''     # version, X.Y.Z
ASI_GUARDS=''     # directory of the guards of an import
ASI_AWAY=()       # before an Enroot: it makes its directories below HOME, whatever it is asked, unless told others

# asi::imports - does this run pull an image? Not where an earlier import left its file in the store.
asi::imports() {
    [[ "${ASI_OPERATION}" == import_oci && -z "${ASI_EXISTING_SHA256}" ]]
}

# asi::check_tools - what the work needs, before any byte is moved.
asi::check_tools() {
    local tool=''
    local -a tools=(enroot unsquashfs setsid setpriv timeout stat od awk)
    if asi::imports; then
        tools+=(curl jq mksquashfs)
    fi
    for tool in "${tools[@]}"; do
        command -v "${tool}" > /dev/null \
            || asi::fail "${E_TOOL_MISSING}" "'${tool}' is not on the job's PATH (${PATH}) on node ${SLURMD_NODENAME}"
    done
    ASI_AWAY=(
        env "ENROOT_RUNTIME_PATH=${ASI_SCRATCH}/run" "ENROOT_DATA_PATH=${ASI_SCRATCH}/data"
        "ENROOT_TEMP_PATH=${ASI_SCRATCH}/tmp" "ENROOT_CACHE_PATH=${ASI_SCRATCH}/home"
    )
    asi::begin version asi::ask_version
    asi::pick_hash_tool
}

# asi::ask_version - of what Enroot says besides, nothing belongs to it.
asi::ask_version() {
    setpriv --pdeathsig KILL timeout --kill-after=10 60 "${ASI_AWAY[@]}" enroot version 2> /dev/null \
        | { head -c 200 && cat > /dev/null; }
}

# asi::require_enroot - one that works, and that can do what is asked of it.
asi::require_enroot() {
    asi::end version || asi::fail "${E_TOOL_MISSING}" "'enroot version' fails on ${SLURMD_NODENAME}"
    ASI_ENROOT="$(< "${ASI_SCRATCH}/version")"
    if [[ ! "${ASI_ENROOT}" =~ ^[0-9]{1,4}[.][0-9.]*$ ]]; then
        asi::fail "${E_TOOL_MISSING}" "'enroot version' on ${SLURMD_NODENAME} tells no version but '${ASI_ENROOT:0:80}'"
    fi
    asi::log "enroot ${ASI_ENROOT} on node ${SLURMD_NODENAME}"
    if asi::imports && [[ "${ASI_NEEDS_ENROOT_4}" == 1 && "${ASI_ENROOT%%.*}" -lt 4 ]]; then
        asi::fail "${E_ENROOT_TOO_OLD}" \
            "repository '${ASI_REPOSITORY}' at registry ${ASI_REGISTRY} needs Enroot 4 or a namespace; this is ${ASI_ENROOT}"
    fi
}

# asi::processors - CPUs of the allocation, never all of the node.
asi::processors() {
    printf '%s\n' "${SLURM_CPUS_PER_TASK:-${ASI_CPUS}}"
}

# asi::squash_options - the profile's, which win, with a limit to mksquashfs's memory before them: else it takes a quarter
# of the node's.
asi::squash_options() {
    local -r quarter="$((ASI_MEMORY_MIB / 4))"
    printf -- '-mem %dM %s -exit-on-error\n' "$((quarter < 128 ? 128 : quarter))" "${ASI_SQUASH_OPTIONS}"
}

# asi::connections - transfers at a time; each has its own decompressor.
asi::connections() {
    local -r wanted="$((2 * $(asi::processors)))"
    printf '%d\n' "${ENROOT_MAX_CONNECTIONS:-$((wanted > 10 ? 10 : wanted))}"
}

# asi::make_import_cache - an Enroot cache of this attempt alone, filled with hard links from the layer cache (of the
# verified manifest's layers only): Enroot names temporary files by pid (two nodes collide) and leaves the login in
# its cache when killed.
asi::make_import_cache() {
    mkdir -p "${ASI_ATTEMPT_DIR}/cache" # 0700 by the umask, like all of ours
    if [[ "${ASI_LAYER_CACHE}" == 1 ]]; then
        mkdir -p "${ASI_CACHE}"
    fi
    if [[ "${ASI_LAYER_CACHE}" == 1 && -n "${ASI_LAYERS}" ]]; then
        asi::link_layers
    elif [[ "${ASI_LAYER_CACHE}" == 1 ]]; then
        find "${ASI_CACHE}" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}' \
            -exec ln -t "${ASI_ATTEMPT_DIR}/cache" -- {} + 2> /dev/null || true
    fi
}

# asi::harvest_cache - hand the new layers to the layer cache by rename, then drop what is left. Also after a failed
# import: Enroot gives a layer its final name only when it is whole, so a retry goes on from there.
asi::harvest_cache() {
    local layer=''
    if [[ ! -d "${ASI_ATTEMPT_DIR}/cache" ]]; then
        return 0
    fi
    if [[ "${ASI_LAYER_CACHE}" == 1 ]]; then
        while IFS= read -r layer; do
            if [[ -e "${ASI_CACHE}/${layer##*/}" ]]; then
                touch -c -- "${ASI_CACHE}/${layer##*/}" # used: housekeeping drops the oldest
            else
                mv -n -- "${layer}" "${ASI_CACHE}/" || true
            fi
        done < <(find "${ASI_ATTEMPT_DIR}/cache" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}')
    fi
    rm -rf -- "${ASI_ATTEMPT_DIR}/cache"
}

# asi::creation_time - seconds since the epoch at which the image was made, nothing where it does not say so sensibly.
# Given to mksquashfs, it makes two imports of one image the same bytes: times of the import itself are set back to it.
asi::creation_time() {
    local created='' seconds=''
    created="$(jq -r '.created // empty | strings' "${ASI_SCRATCH}/config.json" 2> /dev/null)" || return 0
    if [[ "${created}" =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2} ]]; then
        seconds="$(date -u -d "${BASH_REMATCH[0]}Z" +%s 2> /dev/null)" || return 0
        # Reproducible builds say 1970; that would take the time off every file.
        if ((seconds > 946684800 && seconds < $(date +%s))); then
            printf '%s\n' "${seconds}"
        fi
    fi
}

# asi::refuse_outside - Enroot makes the image's working directory at import, starting from its own root: one with `..`
# would be made on the host [measured on 4.1.2].
asi::refuse_outside() {
    local -r config="${ASI_SCRATCH}/config.json"
    if [[ -f "${config}" ]] \
        && ! jq -e '(.config.WorkingDir? // "") | tostring | test("(^|/)[.][.](/|\n|$)") | not' "${config}" > /dev/null; then
        asi::fail "${E_UNSAFE_IMAGE}" "the image's working directory leads out of the image; it was not imported"
    fi
}

# asi::import - pull the pinned image and make the SquashFS file, on scratch or straight beside the store.
asi::import() {
    local status=0 code="${E_IMPORT_FAILED}" epoch=''
    local -r log="${ASI_ATTEMPT_DIR}/enroot.log"
    asi::refuse_outside
    asi::guard_import
    local -a environment=(
        "PATH=${ASI_GUARDS}:${PATH}" "ENROOT_RUNTIME_PATH=${ASI_SCRATCH}/run" "ENROOT_DATA_PATH=${ASI_SCRATCH}/data"
        "ENROOT_TEMP_PATH=${ASI_SCRATCH}/tmp" "TMPDIR=${ASI_SCRATCH}/tmp"
        "ENROOT_CACHE_PATH=${ASI_ATTEMPT_DIR}/cache" "PARALLEL_HOME=${ASI_SCRATCH}/tmp/parallel"
        "ENROOT_SQUASH_OPTIONS=$(asi::squash_options)" "ENROOT_MAX_PROCESSORS=$(asi::processors)"
        "ENROOT_MAX_CONNECTIONS=$(asi::connections)" "ENROOT_TRANSFER_RETRIES=${ENROOT_TRANSFER_RETRIES:-3}"
        "ENROOT_ALLOW_HTTP=${ASI_ALLOW_HTTP}"
    )
    if [[ -e "${ASI_ATTEMPT_DIR}/enroot-config" ]]; then
        environment+=("ENROOT_CONFIG_PATH=${ASI_ATTEMPT_DIR}/enroot-config")
    fi
    epoch="${SOURCE_DATE_EPOCH:-$(asi::creation_time)}"
    if [[ -n "${epoch}" ]]; then
        environment+=("SOURCE_DATE_EPOCH=${epoch}")
    fi
    asi::make_import_cache
    ASI_WORK="${ASI_SCRATCH}/made/image.sqsh"
    ASI_WORK_OWNED=1
    asi::tool "${log}" "${ASI_IMPORT_TIMEOUT}" env "${environment[@]}" \
        enroot import --arch "${ASI_ARCH:-$(uname -m)}" --output "${ASI_WORK}" \
        "${ASI_IMAGE_URI%:sha256:*}:${ASI_PLATFORM_DIGEST:-${ASI_DIGEST}}" || status=$?
    asi::forget_credentials
    asi::check_guards
    if ((status != 0)); then
        asi::full "${ASI_SCRATCH}" || code=$? # not every tool says so
        if ((code == E_IMPORT_FAILED)); then
            asi::show_space
        fi
        asi::fail "${code}" "enroot import ended with status ${status} (registry ${ASI_REGISTRY}, repository ${ASI_REPOSITORY})"
    fi
    if grep -q "architecture doesn't match the requested one" "${log}"; then
        asi::fail "${E_ARCHITECTURE}" "the image is for another architecture than ${ASI_ARCH:-$(uname -m)}"
    fi
    if [[ ! -f "${ASI_WORK}" || -L "${ASI_WORK}" ]]; then
        asi::fail "${E_IMPORT_FAILED}" "enroot import ended with status 0 but made no file"
    fi
    if [[ -n "${ASI_LAYERS}" ]]; then
        asi::check_layers
    fi
}

# asi::locate - the file of an inspection: a regular file, readable here, not a link.
asi::locate() {
    if [[ -L "${ASI_SQSH_PATH}" ]]; then
        asi::fail "${E_SOURCE_REFUSED}" "${ASI_SQSH_PATH} is a symbolic link; name the file itself"
    fi
    if [[ ! -e "${ASI_SQSH_PATH}" ]]; then
        asi::fail "${E_SOURCE_NOT_VISIBLE}" "${ASI_SQSH_PATH} is not visible on node ${SLURMD_NODENAME}"
    fi
    if [[ ! -f "${ASI_SQSH_PATH}" || ! -r "${ASI_SQSH_PATH}" ]]; then
        asi::fail "${E_SOURCE_REFUSED}" "${ASI_SQSH_PATH} is not a readable regular file on node ${SLURMD_NODENAME}"
    fi
    ASI_WORK="${ASI_SQSH_PATH}"
}
