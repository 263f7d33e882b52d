# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Everything that calls Enroot: import into a private place, start without anything of the site's or the image's
# configuration, and the fall-backs between them.

ASI_WORK=''       # the .sqsh being worked on
ASI_WORK_OWNED='' # set when the job made that file itself
ASI_ENROOT=''     # version, X.Y.Z
ASI_WRAP=()          # what an image is started with, for isolation
ASI_START_OPTIONS=() # the same, of Enroot's own
ASI_START_SECONDS=0  # left for all starts of this image together
readonly ASI_FACTS_LIMIT=1048576

# asi::imports - does this run pull an image? Not where an earlier import left its file in the store.
asi::imports() {
    [[ "${ASI_OPERATION}" == import_oci && -z "${ASI_EXISTING_SHA256}" ]]
}

# asi::check_tools - what the work needs, before any byte is moved.
asi::check_tools() {
    local tool=''
    local -a tools=(enroot unsquashfs setsid setpriv timeout stat od awk)
    if asi::imports; then
        tools+=(curl jq)
    fi
    for tool in "${tools[@]}"; do
        command -v "${tool}" > /dev/null \
            || asi::fail "${E_TOOL_MISSING}" "'${tool}' is not on the job's PATH (${PATH}) on node ${SLURMD_NODENAME}"
    done
    # shellcheck disable=SC2016 # of its errors nothing belongs to the version
    asi::away_from_home "${ASI_SCRATCH}/version" 60 bash -c 'exec "$@" 2> /dev/null' bash enroot version \
        || asi::fail "${E_TOOL_MISSING}" "'enroot version' fails on ${SLURMD_NODENAME}"
    ASI_ENROOT="$(< "${ASI_SCRATCH}/version")"
    if [[ ! "${ASI_ENROOT}" =~ ^[0-9]{1,4}[.][0-9.]*$ ]]; then
        asi::fail "${E_TOOL_MISSING}" "'enroot version' on ${SLURMD_NODENAME} tells no version but '${ASI_ENROOT:0:80}'"
    fi
    asi::log "enroot ${ASI_ENROOT} on node ${SLURMD_NODENAME}"
    if asi::imports && [[ "${ASI_NEEDS_ENROOT_4}" == 1 && "${ASI_ENROOT%%.*}" -lt 4 ]]; then
        asi::fail "${E_ENROOT_TOO_OLD}" \
            "repository '${ASI_REPOSITORY}' at registry ${ASI_REGISTRY} needs Enroot 4 or a namespace; this is ${ASI_ENROOT}"
    fi
    asi::pick_hash_tool
}

# asi::away_from_home FILE SECONDS COMMAND... - ask Enroot something. It makes its directories below HOME, whatever it is
# asked, unless told others.
asi::away_from_home() {
    local -r file="$1" limit="$2"
    shift 2
    asi::quietly "${file}" "${limit}" \
        env "ENROOT_RUNTIME_PATH=${ASI_SCRATCH}/run" "ENROOT_DATA_PATH=${ASI_SCRATCH}/data" \
        "ENROOT_TEMP_PATH=${ASI_SCRATCH}/tmp" "ENROOT_CACHE_PATH=${ASI_SCRATCH}/home" "$@"
}

# asi::processors - CPUs of the allocation, never all of the node.
asi::processors() {
    printf '%s\n' "${SLURM_CPUS_PER_TASK:-${ASI_CPUS}}"
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

# asi::mkdir ARGUMENT... - stands before mkdir(1) while Enroot imports, for a registry that gives Enroot another image than
# it gave us, and where the manifest is not verified: a path that leads out of Enroot's working directory is not made.
asi::mkdir() {
    local path=''
    for path in "$@"; do
        if [[ "${path}" == "${PWD}/"* && "${path}" =~ (^|/)[.][.](/|$) ]]; then
            : > "${0%/*}/outside"
            exit 1
        fi
    done
    PATH="${PATH#"${0%/*}":}"
    exec mkdir "$@"
}

# asi::guard_mkdir - put it where Enroot finds it, and see that it works: scratch may be mounted noexec.
asi::guard_mkdir() {
    local -r bin="${ASI_SCRATCH}/bin"
    mkdir -- "${bin}"
    printf '#!/bin/bash -p\nset +o posix\n%s\nasi::mkdir "$@"\n' "$(declare -f asi::mkdir)" > "${bin}/mkdir"
    chmod 0700 -- "${bin}/mkdir"
    (cd "${ASI_SCRATCH}" && "${bin}/mkdir" "${PWD}/..") 2> /dev/null || true
    if [[ ! -e "${bin}/outside" && ! -f "${ASI_SCRATCH}/config.json" ]]; then
        asi::fail "${E_SCRATCH}" "no program can run below ${ASI_SCRATCH} (noexec?), which an import with verify_manifest off needs; set scratch_root"
    fi
    rm -f -- "${bin}/outside"
}

# asi::import - pull the pinned image and make the SquashFS file, on scratch or straight beside the store.
asi::import() {
    local status=0 epoch=''
    local -r log="${ASI_ATTEMPT_DIR}/enroot.log"
    local -a environment=(
        "PATH=${ASI_SCRATCH}/bin:${PATH}" "ENROOT_RUNTIME_PATH=${ASI_SCRATCH}/run" "ENROOT_DATA_PATH=${ASI_SCRATCH}/data"
        "ENROOT_TEMP_PATH=${ASI_SCRATCH}/tmp" "TMPDIR=${ASI_SCRATCH}/tmp"
        "ENROOT_CACHE_PATH=${ASI_ATTEMPT_DIR}/cache" "PARALLEL_HOME=${ASI_SCRATCH}/tmp/parallel"
        "ENROOT_SQUASH_OPTIONS=${ASI_SQUASH_OPTIONS} -exit-on-error"
        "ENROOT_MAX_PROCESSORS=$(asi::processors)" "ENROOT_ALLOW_HTTP=${ASI_ALLOW_HTTP}"
    )
    if [[ -e "${ASI_ATTEMPT_DIR}/enroot-config" ]]; then
        environment+=("ENROOT_CONFIG_PATH=${ASI_ATTEMPT_DIR}/enroot-config")
    fi
    epoch="${SOURCE_DATE_EPOCH:-$(asi::creation_time)}"
    if [[ -n "${epoch}" ]]; then
        environment+=("SOURCE_DATE_EPOCH=${epoch}")
    fi
    asi::refuse_outside
    asi::guard_mkdir
    asi::make_import_cache
    ASI_WORK="${ASI_SCRATCH}/work/image.sqsh"
    ASI_WORK_OWNED=1
    asi::tool "${log}" "${ASI_IMPORT_TIMEOUT}" env "${environment[@]}" \
        enroot import --arch "${ASI_ARCH:-$(uname -m)}" --output "${ASI_WORK}" \
        "${ASI_IMAGE_URI%:sha256:*}:${ASI_PLATFORM_DIGEST:-${ASI_DIGEST}}" || status=$?
    asi::forget_credentials
    if [[ -e "${ASI_SCRATCH}/bin/outside" ]]; then
        asi::fail "${E_UNSAFE_IMAGE}" "the image's working directory leads out of the image; it was not imported"
    fi
    if ((status != 0)); then
        asi::show_space
        asi::fail "${E_IMPORT_FAILED}" "enroot import ended with status ${status} (registry ${ASI_REGISTRY}, repository ${ASI_REPOSITORY})"
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

# asi::require_user_namespaces - a plain one, of the kind that Enroot makes, inside what isolates it. Seen by ourselves: what
# an image prints is no proof, and an unshare(1) that only lacks an option makes one.
asi::require_user_namespaces() {
    local status=0
    asi::quietly "${ASI_SCRATCH}/namespaces" 30 "${ASI_WRAP[@]+"${ASI_WRAP[@]}"}" unshare --user --map-root-user true || status=$?
    if ((status == 1)); then
        asi::fail "${E_NO_USER_NAMESPACES}" \
            "user namespaces are unavailable on node ${SLURMD_NODENAME} ($(head -c 200 -- "${ASI_SCRATCH}/namespaces"))"
    fi
}

# asi::isolate - sets ASI_WRAP, words that put a tool into its own PID, network and IPC namespace and tie its life to
# ours, or ASI_START_OPTIONS, which ask Enroot for that: 4.1.2 has no such options, later ones do, and serve where
# unshare(1) is too old. Without a PID namespace an image could signal, and read the memory of, all that the user runs on
# the node, so it is not started. (Mapped to root, older unshare(1) could make one too, but Enroot would see another user.)
asi::isolate() {
    local -r words='unshare --user --map-current-user --pid --fork --kill-child=KILL --mount-proc'
    local extra='' help='' why=''
    ASI_START_OPTIONS=()
    for extra in '--net --ipc' '--net' '--ipc' ''; do
        read -r -a ASI_WRAP <<< "${words} ${extra}"
        if asi::quietly "${ASI_SCRATCH}/namespaces" 30 "${ASI_WRAP[@]}" true; then
            break
        fi
        ASI_WRAP=()
    done
    if ((${#ASI_WRAP[@]} == 0)); then
        why="$(head -c 200 -- "${ASI_SCRATCH}/namespaces")"
        asi::away_from_home "${ASI_SCRATCH}/help" 60 enroot start --help || true
        help="$(< "${ASI_SCRATCH}/help")"
        for extra in --pid --net --ipc; do
            [[ "${help}" != *"${extra}"* ]] || ASI_START_OPTIONS+=("${extra}")
        done
    fi
    extra=" ${ASI_WRAP[*]-} ${ASI_START_OPTIONS[*]-} "
    if [[ "${extra}" != *' --pid '* ]]; then
        asi::require_user_namespaces
        asi::fail "${E_UNSAFE_IMAGE}" "node ${SLURMD_NODENAME} offers no PID namespace (${why}), so the image was not started; kind 'generic' works, or use 'exclude' to avoid this node"
    fi
    if [[ "${extra}" != *' --net '* || "${extra}" != *' --ipc '* ]]; then
        asi::log "node ${SLURMD_NODENAME} offers no network or no IPC namespace; the image is started with the node's"
    fi
}

# asi::start TARGET - run the inspector in TARGET, a .sqsh or the name of an unpacked image. It finds nothing of the
# host that it can write to but two pipes: its output, and one for the facts.
asi::start() {
    local -r target="$1" pipe="${ASI_SCRATCH}/mount/facts" began="${SECONDS}"
    local reader='' facts='' status=0 lost=0
    rm -f -- "${pipe}"
    mkfifo -- "${pipe}"
    # one byte more than allowed tells that there was more
    asi::capture "${ASI_ATTEMPT_DIR}/output/facts.json" "$((ASI_FACTS_LIMIT + 1))" < "${pipe}" {ASI_GUARD}>&- &
    reader=$!
    exec {facts}> "${pipe}" # the reader is done when the last writer is
    asi::tool "${ASI_ATTEMPT_DIR}/inspect.log" "${ASI_START_SECONDS}" \
        env -i "PATH=${PATH}" "HOME=${ASI_SCRATCH}/home" "LC_ALL=${LC_ALL}" \
        "ENROOT_SYSCONF_PATH=${ASI_ATTEMPT_DIR}/enroot-sysconf" "ENROOT_CONFIG_PATH=${ASI_SCRATCH}/home" \
        "ENROOT_RUNTIME_PATH=${ASI_SCRATCH}/run" "ENROOT_DATA_PATH=${ASI_SCRATCH}/data" \
        "ENROOT_TEMP_PATH=${ASI_SCRATCH}/tmp" "ENROOT_CACHE_PATH=${ASI_SCRATCH}/home" \
        ENROOT_LOGIN_SHELL=no ENROOT_MOUNT_HOME=no ENROOT_ROOTFS_WRITABLE=no ENROOT_REMAP_ROOT=no \
        ENROOT_ALLOW_SUPERUSER=no NVIDIA_VISIBLE_DEVICES=void MELLANOX_VISIBLE_DEVICES=void \
        "${ASI_WRAP[@]+"${ASI_WRAP[@]}"}" enroot start "${ASI_START_OPTIONS[@]+"${ASI_START_OPTIONS[@]}"}" \
        --env SHELL=/bin/sh --rc "${ASI_ATTEMPT_DIR}/enroot.rc" --conf "${ASI_ATTEMPT_DIR}/start.conf" \
        --mount "${ASI_SCRATCH}/mount:/asi:none:x-create=dir,bind,ro,nosuid,nodev,noexec,private" \
        "${target}" --kind "${ASI_KIND}" || status=$?
    exec {facts}>&-
    wait "${reader}" || lost=$?
    if ((lost != 0)); then
        asi::fail "${E_INTERNAL}" "the facts from the image could not be kept in ${ASI_ATTEMPT_DIR}/output (status ${lost})"
    fi
    ASI_START_SECONDS=$((ASI_START_SECONDS - (SECONDS - began)))
    return "${status}"
}

# asi::mount_failed - the start never reached the image, or the image says so; says nothing about the image.
asi::mount_failed() {
    grep -Eq 'Failed to mount|fuse|user namespace|Operation not permitted' "${ASI_ATTEMPT_DIR}/inspect.log" \
        && [[ ! -s "${ASI_ATTEMPT_DIR}/output/facts.json" ]] && ((ASI_START_SECONDS > 0))
}

# asi::start_somehow FILE - direct; once more, as Enroot waits only half a second for a mount; then unpacked.
asi::start_somehow() {
    local -r file="$1"
    local status=0
    asi::isolate
    asi::start "${file}" || status=$?
    if ((status == 1)) && grep -q 'failed to create user namespace' "${ASI_ATTEMPT_DIR}/inspect.log"; then
        asi::require_user_namespaces
    fi
    if ((status == 1)) && asi::mount_failed; then
        asi::log "mounting failed; once more in 5 s"
        sleep 5
        status=0
        asi::start "${file}" || status=$?
    fi
    if ((status == 1)) && asi::mount_failed; then
        asi::log "the image cannot be started from its file here; unpacking it on scratch"
        asi::check_space
        status=0
        asi::tool "${ASI_ATTEMPT_DIR}/enroot.log" "${ASI_IMPORT_TIMEOUT}" \
            env "ENROOT_RUNTIME_PATH=${ASI_SCRATCH}/run" "ENROOT_DATA_PATH=${ASI_SCRATCH}/data" \
            "ENROOT_TEMP_PATH=${ASI_SCRATCH}/tmp" "ENROOT_CACHE_PATH=${ASI_SCRATCH}/home" \
            "ENROOT_MAX_PROCESSORS=$(asi::processors)" enroot create --name inspected "${file}" \
            && { asi::start inspected || status=$?; } || status="${status/#0/${ASI_TOOL_STATUS}}"
    fi
    return "${status}"
}

# asi::inspect FILE - facts from inside the image; its output is hostile until Airflow's side validated it.
asi::inspect() {
    local status=0
    cp -- "${ASI_ATTEMPT_DIR}/inspect_image.py" "${ASI_SCRATCH}/mount/inspect_image.py"
    ASI_START_SECONDS="${ASI_INSPECT_TIMEOUT}"
    asi::start_somehow "$1" || status=$?
    asi::compare_identity # first of all: what happened may have happened to another file
    case "${status}" in
        0) ;;
        90) asi::fail "${E_NO_PYTHON}" "no usable Python in the image" ;;
        91 | 92) asi::fail "${E_INSPECTION_FAILED}" "the inspector could not make the record" ;;
        124 | 137)
            if ((ASI_START_SECONDS > 0)); then # the image killed itself, or Linux did for its memory
                asi::fail "${E_INSPECTION_FAILED}" "the image's processes were killed (status ${status})"
            fi
            asi::fail "${E_INSPECTION_TIMEOUT}" "the inspection did not end within ${ASI_INSPECT_TIMEOUT} s"
            ;;
        1 | 126 | 127) # Enroot's own
            asi::fail "${E_START_FAILED}" "the image could not be started on node ${SLURMD_NODENAME} (status ${status})"
            ;;
        *) asi::fail "${E_INSPECTION_FAILED}" "the image's Python ended with status ${status}" ;;
    esac
    if [[ ! -s "${ASI_ATTEMPT_DIR}/output/facts.json" ]]; then
        asi::fail "${E_INSPECTION_FAILED}" "the image ended with status 0 but left no record"
    fi
}
