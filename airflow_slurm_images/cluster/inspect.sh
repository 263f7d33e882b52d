# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Looking into an image: started without anything of the site's or the image's configuration, isolated, and the
# fall-backs where a node cannot start it from its file. Needs enroot.sh, process.sh and squashfs.sh.

ASI_WRAP=()          # what an image is started with, for isolation
ASI_START_OPTIONS=() # the same, of Enroot's own
ASI_START_SECONDS=0  # left for all starts of this image together
readonly ASI_FACTS_LIMIT=1048576

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
        asi::quietly "${ASI_SCRATCH}/help" 60 "${ASI_AWAY[@]}" enroot start --help || true
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
        asi::log "mounting failed; once more in 5 s, when the file is not being hashed"
        asi::know_file
        sleep 5
        status=0
        asi::start "${file}" || status=$?
    fi
    if ((status == 1)) && asi::mount_failed; then
        asi::log "the image cannot be started from its file here; unpacking it on scratch"
        asi::require_space "${ASI_SCRATCH}" "$(($(asi::listed unpacked) + ASI_MIN_FREE_KIB))" 'the unpacked image and min_free need'
        status=0
        asi::tool "${ASI_ATTEMPT_DIR}/enroot.log" "${ASI_IMPORT_TIMEOUT}" \
            "${ASI_AWAY[@]}" "ENROOT_MAX_PROCESSORS=$(asi::processors)" enroot create --name inspected "${file}" \
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
    if ((status != 0)) || [[ ! -s "${ASI_ATTEMPT_DIR}/output/facts.json" ]]; then
        asi::know_file
    fi
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
