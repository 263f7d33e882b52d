# shellcheck shell=bash
# First contact of a task: resolve the workspace root once, make what is missing below it with explicit modes,
# refuse what is not ours, and tell what there is of this run: its active jobs, its attempts, and the images
# already made from the same source.

ASI_ACTIVE='' # ids of the run's jobs that may still run

# asi::real_directory PATH - sets ASI_OWNER, ASI_DIRECTORY_GROUP and ASI_MODE of what is a directory and no link.
asi::real_directory() {
    local -r path="$1"
    if [[ -L "${path}" ]]; then
        asi::refuse unsafe_workspace "${path} is a symbolic link; below the workspace root only real directories are used"
    fi
    if [[ ! -d "${path}" ]]; then
        asi::refuse unsafe_workspace "${path} is not a directory"
    fi
    IFS='|' read -r ASI_OWNER ASI_DIRECTORY_GROUP ASI_MODE < <(stat -c '%U|%G|%a' -- "${path}")
    if [[ ! "${ASI_MODE}" =~ ^[0-7]+$ ]]; then
        asi::refuse unavailable "cannot look at ${path}"
    fi
}

# asi::trusted PATH - owned by us or (shared workspace) by a member of the group, never world-writable.
asi::trusted() {
    local -r path="$1"
    asi::real_directory "${path}"
    if (((8#${ASI_MODE} & 8#0002) != 0)); then
        asi::refuse unsafe_workspace "${path} is world-writable (mode ${ASI_MODE}); chmod o-w it"
    fi
    if [[ "${ASI_OWNER}" != "${ASI_LOGIN}" ]]; then
        if [[ -z "${ASI_GROUP}" ]]; then
            asi::refuse unsafe_workspace "${path} belongs to '${ASI_OWNER}', not to '${ASI_LOGIN}'; set \`group\` where accounts share the workspace, or use another workspace_root"
        elif ! asi::in_group "${ASI_OWNER}"; then
            asi::refuse unsafe_workspace "${path} belongs to '${ASI_OWNER}', who is no member of group '${ASI_GROUP}'; use another workspace_root"
        fi
    fi
}

# asi::private PATH - ours alone, group or not: here lie the scripts our jobs run and the logins they use.
asi::private() {
    local -r path="$1"
    asi::real_directory "${path}"
    if [[ "${ASI_OWNER}" != "${ASI_LOGIN}" ]]; then
        asi::refuse unsafe_workspace "${path} belongs to '${ASI_OWNER}', not to '${ASI_LOGIN}'"
    fi
    if (((8#${ASI_MODE} & 8#0077) != 0)); then
        asi::refuse unsafe_workspace "${path} is open to others (mode ${ASI_MODE}); look at what is in it, then chmod go-rwx it"
    fi
}

# asi::in_group LOGIN
asi::in_group() {
    [[ " $(id -Gn -- "$1" 2> /dev/null) " == *" ${ASI_GROUP} "* ]]
}

# asi::make PATH - mkdir may lose a race against another task; the check that follows decides either way.
asi::make() {
    if [[ ! -e "$1" && ! -L "$1" ]]; then
        mkdir -m 0700 -- "$1" 2> /dev/null
    fi
}

# asi::ensure_shared PATH MODE - MODE is for the group; without one 0700. Its owner sets it, also later: he may have been
# killed before, or the profile's group is new. What a profile with a group shares is not taken from it by one without,
# whose versions of an alias the others could not read.
asi::ensure_shared() {
    local -r path="$1" mode="$2"
    asi::make "${path}"
    asi::trusted "${path}"
    if [[ "${ASI_OWNER}" != "${ASI_LOGIN}" ]]; then
        asi::shared "${path}" "${mode}"
    elif [[ -z "${ASI_GROUP}" ]]; then
        if [[ "${ASI_MODE}" == "${mode}" ]]; then
            asi::refuse unsafe_workspace "${path} is shared with group '${ASI_DIRECTORY_GROUP}' (mode ${mode}), but the profile names no group; set \`group\`, or chmod 0700 it, or use another workspace_root"
        elif (((8#${ASI_MODE} & 8#0077) != 0)); then
            chmod 0700 -- "${path}" || asi::refuse unsafe_workspace "cannot set mode 0700 of ${path} (mode ${ASI_MODE})"
        fi
    elif [[ "${ASI_DIRECTORY_GROUP}" != "${ASI_GROUP}" || "${ASI_MODE}" != "${mode}" ]]; then
        { chgrp -- "${ASI_GROUP}" "${path}" && chmod "${mode}" -- "${path}"; } \
            || asi::refuse unsafe_workspace "cannot give ${path} to group ${ASI_GROUP}; is '${ASI_LOGIN}' a member?"
    fi
}

# asi::shared PATH MODE - of another member: as he has to set it, which he may be about to do.
asi::shared() {
    local -r path="$1" mode="$2"
    local round=0
    for ((round = 0; round < 3; round++)); do
        # the set-group-id bit brings the group along, where the file system knows it
        if [[ "${ASI_DIRECTORY_GROUP}" == "${ASI_GROUP}" ]] && (((8#${ASI_MODE} | 8#2000) == 8#${mode})); then
            return 0
        fi
        sleep 1
        asi::trusted "${path}"
    done
    asi::refuse unsafe_workspace "${path} of '${ASI_OWNER}' has mode ${ASI_MODE} and group '${ASI_DIRECTORY_GROUP}', but the profile shares it with group '${ASI_GROUP}' by mode ${mode}; let '${ASI_OWNER}' run a task with that group, or chgrp and chmod it"
}

# asi::ensure_private PATH
asi::ensure_private() {
    asi::make "$1"
    asi::private "$1"
}

# asi::lets_in DIRECTORY GROUP MODE - can the profile's group pass a directory of GROUP and MODE? In doubt (an access
# list, a group that may hold the same accounts) it can.
asi::lets_in() {
    local member='' members=''
    if [[ "$2" == "${ASI_GROUP}" ]]; then
        (((8#$3 & 8#0010) != 0))
        return
    fi
    if (((8#$3 & 8#0001) != 0)) || [[ "$(LC_ALL=C ls -ld -- "$1" 2> /dev/null)" == ??????????+* ]]; then
        return 0
    fi
    (((8#$3 & 8#0010) != 0)) || return 1
    members="$(getent group -- "${ASI_GROUP}" | cut -d : -f 4 | tr ',' '\n' | head -n 20)"
    while IFS= read -r member; do
        if [[ -n "${member}" && " $(id -Gn -- "${member}" 2> /dev/null) " != *" $2 "* ]]; then
            return 1
        fi
    done < <(printf '%s\n' "${members}")
}

# asi::tell_closed - each directory on the way to the workspace, itself included, that keeps the other members of the
# group out: what is shared below it they could not use. A `closed` of the result says which and what helps.
asi::tell_closed() {
    local path="${ASI_ROOT}" group='' mode='' help=''
    while [[ -n "${path}" ]]; do
        IFS='|' read -r group mode < <(stat -c '%G|%a' -- "${path}" 2> /dev/null)
        if [[ "${mode}" =~ ^[0-7]+$ ]] && ! asi::lets_in "${path}" "${group}" "${mode}"; then
            if [[ "${path}" == "${ASI_ROOT}" ]]; then
                help="chgrp ${ASI_GROUP} ${path} && chmod g+rwxs ${path}"
            elif [[ "${group}" == "${ASI_GROUP}" ]]; then
                help="chmod g+x ${path}"
            else
                help="chmod o+x ${path}, or setfacl -m g:${ASI_GROUP}:x ${path}"
            fi
            asi::put_text closed "${path} (mode ${mode}, group '${group}') is closed to members of group '${ASI_GROUP}', so they cannot use what this profile shares with them. Let its owner run: ${help}"
        fi
        path="${path%/*}"
    done
}

# asi::workspace - sets ASI_ROOT.
asi::workspace() {
    local mode=''
    ASI_ROOT="$(realpath -e -- "${ASI_WORKSPACE}" 2> /dev/null)" \
        || asi::refuse no_workspace "workspace_root ${ASI_WORKSPACE} does not exist on $(uname -n)"
    mode="$(stat -c %a -- "${ASI_ROOT}")" || asi::refuse unavailable "cannot look at ${ASI_ROOT}"
    if (((8#${mode} & 8#0002) != 0)); then
        asi::refuse unsafe_workspace "workspace_root ${ASI_ROOT} is world-writable (mode ${mode}); chmod o-w it"
    fi
    if [[ ! -w "${ASI_ROOT}" && ! -d "${ASI_ROOT}/users/${ASI_LOGIN}" && ! -w "${ASI_ROOT}/users" ]]; then
        asi::refuse no_workspace "workspace_root ${ASI_ROOT} is not writable for '${ASI_LOGIN}'"
    fi
    if [[ -n "${ASI_GROUP}" ]] && ! asi::in_group "${ASI_LOGIN}"; then
        asi::refuse unsafe_workspace "'${ASI_LOGIN}' is not a member of group '${ASI_GROUP}'"
    fi
    asi::ensure_shared "${ASI_ROOT}/store" 3770
    asi::ensure_shared "${ASI_ROOT}/store/sha256" 3770
    asi::ensure_shared "${ASI_ROOT}/aliases" 2770
    asi::ensure_shared "${ASI_ROOT}/users" 3770
    asi::ensure_private "${ASI_ROOT}/users/${ASI_LOGIN}"
    asi::ensure_private "${ASI_ROOT}/users/${ASI_LOGIN}/runs"
    asi::ensure_private "${ASI_ROOT}/users/${ASI_LOGIN}/cache"
    if [[ -n "${ASI_GROUP}" ]]; then
        asi::tell_closed
    fi
    asi::put_text workspace "${ASI_ROOT}"
    asi::put_text login "${ASI_LOGIN}"
    asi::put_text host "$(uname -n)"
    asi::put_text home "$(getent passwd "${EUID}" | cut -d: -f6)"
}

# asi::attempts - newest last; each field carries the attempt's name, so that one missing file shifts nothing.
asi::attempts() {
    local -r run="${ASI_ROOT}/users/${ASI_LOGIN}/runs/${ASI_RUN_KEY}"
    local name='' marker='' names=''
    if [[ ! -e "${run}" && ! -L "${run}" ]]; then
        return 0
    fi
    asi::private "${run}"
    # Attempts that are not seen would be made again, and their jobs missed.
    names="$(find "${run}" -ignore_readdir_race -mindepth 1 -maxdepth 1 -type d -printf '%T@ %f\n' | sort -n | tail -n 20 | cut -d ' ' -f 2)" \
        || asi::refuse unavailable "cannot list ${run}"
    while IFS= read -r name; do
        if [[ ! "${name}" =~ ^[0-9a-f]{16}$ || -L "${run}/${name}" || ! -O "${run}/${name}" ]]; then
            continue
        fi
        asi::put_text attempt "${name}"
        asi::put_file "${name}.plan" "${run}/${name}/plan.json" 1048577
        asi::put_file "${name}.job_id" "${run}/${name}/job_id" 256
        asi::put_file "${name}.claim" "${run}/${name}/claim/job_id" 256
        asi::put_file "${name}.submitted_at" "${run}/${name}/submitted_at" 64
        if [[ ! -e "${run}/${name}/completion.json" ]] && ! asi::fenced "${run}/${name}"; then
            asi::add_place_of "${run}/${name}"
        fi
        asi::put_file "${name}.completion" "${run}/${name}/completion.json" 1048577
        [[ ! -e "${run}/${name}/cancelled" ]] || asi::put_text "${name}.cancelled" 1
        for marker in "${run}/${name}/generations/"*; do
            asi::put_text "${name}.generation" "${marker##*/}"
        done
    done < <(printf '%s\n' "${names}")
}

# asi::strays - does squeue's answer (ASI_OUTPUT) hold a line that is no row?
asi::strays() {
    printf '%s\n' "${ASI_OUTPUT}" | awk '!/^$|^CLUSTER: |^[0-9]+[|]/ { found = 1 } END { exit !found }'
}

# asi::queues - all jobs of this run: on the profile's cluster, and on each that has a job of one of its attempts. Sets
# ASI_ACTIVE, and ASI_STATUS to that of a question that failed.
asi::queues() {
    local cluster='' failed=0
    for cluster in "${ASI_PLACES[@]}"; do
        asi::put_text squeue.cluster "${cluster}"
        asi::run_on "${cluster}" squeue 30 squeue --noheader --all --states=all --user="${ASI_LOGIN}" \
            --name="asi-${ASI_RUN_KEY}" --format="${ASI_SQUEUE_FORMAT}"
        ((ASI_STATUS == 0)) || failed="${ASI_STATUS}"
        if [[ -n "${ASI_ERRORS}" ]] || asi::strays; then
            failed=1 # it may list a job all the same
        fi
        ASI_ACTIVE+="$(asi::active_jobs)"
    done
    ASI_STATUS="${failed}"
}

# asi::old FILE MINUTES - whether it is there, written that long ago.
asi::old() {
    [[ -n "$(find "$1" -maxdepth 0 -mmin "+$2" 2> /dev/null)" ]]
}

# asi::forget_logins - of attempts that have ended: a record is there, or no job of the run is in the queue although
# one was submitted minutes ago (hours, where sbatch did not answer). Of one that was staged and not submitted too, at
# once where another try begins, which never submits it; it, and one in doubt, then get no job any more.
asi::forget_logins() {
    local attempt='' absent=''
    ((ASI_STATUS == 0)) && [[ -z "${ASI_ACTIVE}" ]] && absent=1
    for attempt in "${ASI_ROOT}/users/${ASI_LOGIN}/runs/${ASI_RUN_KEY}"/*/; do
        attempt="${attempt%/}"
        if [[ -f "${attempt}/completion.json" ]]; then
            asi::forget_login "${attempt}"
        elif [[ -e "${attempt}/job_id" ]]; then
            if [[ -n "${absent}" ]] && asi::old "${attempt}/job_id" 5; then
                asi::forget_login "${attempt}"
            fi
        elif [[ -e "${attempt}/submitted_at" ]]; then
            if [[ -n "${absent}" ]] && asi::old "${attempt}/submitted_at" 120; then
                asi::take_claim "${attempt}"
                asi::forget_login "${attempt}"
            fi
        elif [[ "${ASI_BEGINS}" == 1 ]] && asi::take_claim "${attempt}"; then
            asi::forget_login "${attempt}"
        fi
    done
}

asi::main() {
    asi::begin
    ASI_LOGIN="$(id -un)"
    asi::workspace
    if [[ -n "${ASI_SOURCE_DIGEST}" ]]; then
        asi::put_candidates "${ASI_SOURCE_DIGEST}"
        if [[ -n "${ASI_NAME}" ]]; then
            asi::put_current "${ASI_NAME}"
        fi
    fi
    if [[ -n "${ASI_RUN_KEY}" ]]; then
        asi::attempts
        asi::queues
        asi::forget_logins
    fi
}

asi::main
