# shellcheck shell=bash
# First contact of a task: resolve the workspace root once, make what is missing below it with explicit modes,
# refuse what is not ours, and tell what there is of this run: its active jobs, its attempts, and the images
# already made from the same source.

# asi::trusted PATH - a real directory, owned by us or (shared workspace) by a member of the group, never world-writable.
asi::trusted() {
    local -r path="$1"
    local owner='' mode=''
    if [[ -L "${path}" ]]; then
        asi::refuse unsafe_workspace "${path} is a symbolic link; below the workspace root only real directories are used"
    fi
    if [[ ! -d "${path}" ]]; then
        asi::refuse unsafe_workspace "${path} is not a directory"
    fi
    read -r owner mode <<< "$(stat -c '%U %a' -- "${path}")"
    if (((8#${mode} & 8#0002) != 0)); then
        asi::refuse unsafe_workspace "${path} is world-writable (mode ${mode}); chmod o-w it"
    fi
    if [[ "${owner}" != "${ASI_LOGIN}" ]]; then
        if [[ -z "${ASI_GROUP}" ]] || ! asi::in_group "${owner}"; then
            asi::refuse unsafe_workspace "${path} belongs to '${owner}', not to '${ASI_LOGIN}'"
        fi
    fi
}

# asi::in_group LOGIN
asi::in_group() {
    [[ " $(id -Gn -- "$1" 2> /dev/null) " == *" ${ASI_GROUP} "* ]]
}

# asi::ensure PATH MODE - mkdir may lose a race against another task; the check below decides either way.
asi::ensure() {
    local -r path="$1" mode="$2"
    if [[ ! -e "${path}" && ! -L "${path}" ]] && mkdir -m 0700 -- "${path}" 2> /dev/null; then
        if [[ -n "${ASI_GROUP}" && "${mode}" != 0700 ]]; then
            { chgrp -- "${ASI_GROUP}" "${path}" && chmod "${mode}" -- "${path}"; } \
                || asi::refuse unsafe_workspace "cannot give ${path} to group ${ASI_GROUP}; is '${ASI_LOGIN}' a member?"
        fi
    fi
    asi::trusted "${path}"
}

# asi::workspace - sets ASI_ROOT.
asi::workspace() {
    local mode=''
    local -r shared="${ASI_GROUP:+3770}" names="${ASI_GROUP:+2770}"
    ASI_ROOT="$(realpath -e -- "${ASI_WORKSPACE}" 2> /dev/null)" \
        || asi::refuse no_workspace "workspace_root ${ASI_WORKSPACE} does not exist on $(uname -n)"
    mode="$(stat -c %a -- "${ASI_ROOT}")"
    if (((8#${mode} & 8#0002) != 0)); then
        asi::refuse unsafe_workspace "workspace_root ${ASI_ROOT} is world-writable (mode ${mode}); chmod o-w it"
    fi
    if [[ ! -w "${ASI_ROOT}" && ! -d "${ASI_ROOT}/users/${ASI_LOGIN}" ]]; then
        asi::refuse no_workspace "workspace_root ${ASI_ROOT} is not writable for '${ASI_LOGIN}'"
    fi
    if [[ -n "${ASI_GROUP}" ]] && ! asi::in_group "${ASI_LOGIN}"; then
        asi::refuse unsafe_workspace "'${ASI_LOGIN}' is not a member of group '${ASI_GROUP}'"
    fi
    asi::ensure "${ASI_ROOT}/store" "${shared:-0700}"
    asi::ensure "${ASI_ROOT}/store/sha256" "${shared:-0700}"
    asi::ensure "${ASI_ROOT}/aliases" "${names:-0700}"
    asi::ensure "${ASI_ROOT}/users" "${shared:-0700}"
    asi::ensure "${ASI_ROOT}/users/${ASI_LOGIN}" 0700
    asi::ensure "${ASI_ROOT}/users/${ASI_LOGIN}/runs" 0700
    asi::ensure "${ASI_ROOT}/users/${ASI_LOGIN}/cache" 0700
    asi::put_text workspace "${ASI_ROOT}"
    asi::put_text login "${ASI_LOGIN}"
    asi::put_text host "$(uname -n)"
    asi::put_text home "$(getent passwd "${EUID}" | cut -d: -f6)"
}

# asi::attempts - newest last; each field carries the attempt's name, so that one missing file shifts nothing.
asi::attempts() {
    local -r run="${ASI_ROOT}/users/${ASI_LOGIN}/runs/${ASI_RUN_KEY}"
    local name='' marker=''
    if [[ ! -e "${run}" && ! -L "${run}" ]]; then
        return 0
    fi
    asi::trusted "${run}"
    while IFS= read -r name; do
        if [[ ! "${name}" =~ ^[0-9a-f]{16}$ || -L "${run}/${name}" ]]; then
            continue
        fi
        asi::put_text attempt "${name}"
        asi::put_file "${name}.plan" "${run}/${name}/plan.json" 1048577
        asi::put_file "${name}.job_id" "${run}/${name}/job_id" 256
        asi::put_file "${name}.claim" "${run}/${name}/claim/job_id" 256
        asi::put_file "${name}.submitted_at" "${run}/${name}/submitted_at" 64
        asi::put_file "${name}.completion" "${run}/${name}/completion.json" 1048577
        [[ ! -e "${run}/${name}/cancelled" ]] || asi::put_text "${name}.cancelled" 1
        for marker in "${run}/${name}/generations/"*; do
            asi::put_text "${name}.generation" "${marker##*/}"
        done
    done < <(find "${run}" -mindepth 1 -maxdepth 1 -type d -printf '%T@ %f\n' 2> /dev/null | sort -n | tail -n 20 | cut -d ' ' -f 2)
}

# asi::forget_logins - of attempts that have ended: a record is there, or no job of the run is in the queue although
# one was submitted minutes ago. Never of one whose submission may still be on its way.
asi::forget_logins() {
    local attempt='' cluster=''
    for attempt in "${ASI_ROOT}/users/${ASI_LOGIN}/runs/${ASI_RUN_KEY}"/*/; do
        attempt="${attempt%/}"
        if [[ -f "${attempt}/completion.json" ]]; then
            asi::forget_login "${attempt}"
        elif ((ASI_STATUS == 0)) && [[ -n "$(find "${attempt}/job_id" -mmin +5 2> /dev/null)" ]]; then
            IFS=';' read -r _ cluster < "${attempt}/job_id"
            if [[ -z "${cluster}" || "${cluster}" == "${ASI_CLUSTER}" ]] \
                && ! grep -Eq '\|(PENDING|RUNNING|CONFIGURING|COMPLETING|SUSPENDED|STOPPED|RESIZING|SIGNALING|STAGE_OUT|REQUEUED|REQUEUE_HOLD)\|' <<< "${ASI_OUTPUT}"; then
                asi::forget_login "${attempt}"
            fi
        fi
    done
}

asi::main() {
    asi::begin
    ASI_LOGIN="$(id -un)"
    asi::workspace
    if [[ -n "${ASI_SOURCE_DIGEST}" ]]; then
        asi::put_candidates "${ASI_SOURCE_DIGEST}"
    fi
    if [[ -n "${ASI_RUN_KEY}" ]]; then
        asi::attempts
        asi::run squeue 30 squeue --noheader --states=all --user="${ASI_LOGIN}" \
            --name="asi-${ASI_RUN_KEY}" --format="${ASI_SQUEUE_FORMAT}"
        asi::forget_logins
    fi
}

asi::main
