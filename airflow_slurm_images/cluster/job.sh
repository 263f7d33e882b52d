# shellcheck shell=bash
# The batch job: verify, claim, check the manifest, import or locate, check, examine, inspect, store, record;
# the file is hashed from the check on.
#
# Appended byte for byte to a block of quoted ASI_* constants. Read from top to bottom; the verbs are in the
# companion files, which are sourced only after their checksums were compared. Every exit leaves
# completion.json in the attempt directory, written last and by rename, except where another job owns the attempt.

# A login profile may have exported POSIXLY_CORRECT; in that mode bash knows no function names like ours.
set +o posix
set -Eeuo pipefail
umask 077

# Exit codes; core/failures.py holds the same table with messages and remedies.
readonly E_INTERNAL=70
readonly E_TAMPERED=71
readonly E_SUPERSEDED=72
readonly E_NO_SPACE=73
readonly E_TOOL_MISSING=74
readonly E_ENROOT_TOO_OLD=75
readonly E_SOURCE_NOT_VISIBLE=76
readonly E_SOURCE_REFUSED=77
readonly E_IMPORT_FAILED=78
readonly E_ARCHITECTURE=79
readonly E_BROKEN_SQUASHFS=80
readonly E_CHANGED=81
readonly E_UNSAFE_IMAGE=82
readonly E_START_FAILED=83
readonly E_NO_PYTHON=84
readonly E_INSPECTION_FAILED=85
readonly E_INSPECTION_TIMEOUT=86
readonly E_STORE_CORRUPT=87
readonly E_STORE_WRITE=88
readonly E_SCRATCH=89
readonly E_MANIFEST=90
readonly E_NO_IMAGE=91
readonly E_LOGIN_USED=92
readonly E_QUOTA=93
readonly E_NO_USER_NAMESPACES=94
readonly E_UNSUPPORTED_SQUASHFS=95
readonly E_UNREADABLE=96

# asi::reexec - start again under a fixed environment: what a login profile or an older Slurm's --export=NIL
# brought along must not choose which image is made.
asi::reexec() {
    local user='' home='' name='' locale=C index=0
    local -a environment=()
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    IFS=: read -r user _ _ _ _ home _ < <(getent passwd "${EUID}") || true
    if grep -Eiq '^C\.utf-?8$' <<< "$(locale -a 2> /dev/null)"; then
        locale=C.UTF-8
    fi
    environment=(
        "PATH=${ASI_PATH_PREPEND:+${ASI_PATH_PREPEND}:}${ASI_ENROOT_BIN:+${ASI_ENROOT_BIN}:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        "HOME=${home:-/}" "USER=${user:-${EUID}}" "LOGNAME=${user:-${EUID}}" "LC_ALL=${locale}"
        "TMPDIR=${TMPDIR:-/tmp}" "ASI_CLEAN=${ASI_TOKEN}"
        "SLURM_JOB_ID=${SLURM_JOB_ID:-0}" "SLURM_RESTART_COUNT=${SLURM_RESTART_COUNT:-0}"
        "SLURM_CLUSTER_NAME=${SLURM_CLUSTER_NAME:-}" "SLURMD_NODENAME=${SLURMD_NODENAME:-}"
        "SLURM_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-}" "SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-}"
    )
    for ((index = 0; index < ASI_ENVIRONMENT_COUNT; index++)); do
        name="ASI_ENVIRONMENT_${index}"
        environment+=("${!name}")
    done
    exec env -i "${environment[@]}" /bin/bash -p "$0"
}

# asi::log TEXT - one line on the job's output, which the task log streams.
asi::log() {
    printf 'asi: %s\n' "$*"
}

# asi::hear_signal - Slurm signals what a job runs before the shell that waits for it: what looks like a failure may be
# the end of the job, and then our trap is to tell.
asi::hear_signal() {
    sleep 0.3
}

# asi::fail CODE TEXT - say why and end with CODE; the exit trap writes the completion record.
asi::fail() {
    local -r code="$1"
    shift
    asi::hear_signal
    printf 'asi: error: %s\n' "$*" >&2
    exit "${code}"
}

# asi::phase NAME - make the phase visible to whoever polls, by rename.
asi::phase() {
    ASI_PHASE="$1"
    printf '%s %d\n' "$1" "${SECONDS}" > "${ASI_ATTEMPT_DIR}/.phase.new"
    mv -f "${ASI_ATTEMPT_DIR}/.phase.new" "${ASI_ATTEMPT_DIR}/phase"
    asi::log "phase $1 (${SECONDS} s)"
}

# asi::verify - every staged file is the one the plan names; also the script that is running.
asi::verify() {
    cd "${ASI_ATTEMPT_DIR}" || exit "${E_TAMPERED}"
    if [[ "$(sha256sum < package.sha256)" != "${ASI_PACKAGE_SHA256}  -" ]] \
        || ! sha256sum --check --strict --quiet package.sha256; then
        asi::fail "${E_TAMPERED}" "a staged file differs from the plan"
    fi
    if ! cmp -s "$0" "${ASI_ATTEMPT_DIR}/job.sbatch"; then
        asi::fail "${E_TAMPERED}" "job.sbatch differs from the script that Slurm runs"
    fi
    # shellcheck disable=SC2046 # the names hold no blanks
    if ! sha256sum -- $(cut -c 67- staged.sha256) 2> /dev/null | cmp -s - staged.sha256; then
        asi::fail "${E_TAMPERED}" "staged.sha256 does not fit the staged files"
    fi
}

# asi::claimant - sets owner and restarts. Who makes a claim names itself right after, or died in between.
asi::claimant() {
    local round=0
    for ((round = 0; round < 10; round++)); do
        if read -r owner restarts < "${ASI_ATTEMPT_DIR}/claim/job_id"; then
            return 0
        fi
        sleep 1
    done 2> /dev/null
    ASI_SUPERSEDED=1
    asi::fail "${E_INTERNAL}" "the attempt is claimed by nobody: who claimed it died at that moment; nothing was done"
}

# asi::claim - one job per attempt: a duplicate submission ends here, a requeue of the same job goes on.
asi::claim() {
    local owner='' restarts=0
    if ! mkdir "${ASI_ATTEMPT_DIR}/claim" 2> /dev/null; then
        if [[ ! -d "${ASI_ATTEMPT_DIR}/claim" ]]; then
            asi::fail "${E_INTERNAL}" "cannot claim the attempt: is ${ASI_ATTEMPT_DIR} full or read-only?"
        fi
        asi::claimant
        if [[ ! "${restarts:=0}" =~ ^(0|[1-9][0-9]{0,8})$ || "${owner}" != "${SLURM_JOB_ID}" ]] \
            || ((SLURM_RESTART_COUNT <= restarts)); then
            ASI_SUPERSEDED=1
            asi::fail "${E_SUPERSEDED}" "job ${owner:-unknown} already runs this attempt: superseded"
        fi
        asi::log "restart ${SLURM_RESTART_COUNT} of the same job: starting over"
        rm -rf "${ASI_ATTEMPT_DIR}/output" "${ASI_ATTEMPT_DIR}/completion.json" "${ASI_ATTEMPT_DIR}/cache"
    fi
    printf '%s %s\n' "${SLURM_JOB_ID}" "${SLURM_RESTART_COUNT}" > "${ASI_ATTEMPT_DIR}/claim/.new"
    mv -f "${ASI_ATTEMPT_DIR}/claim/.new" "${ASI_ATTEMPT_DIR}/claim/job_id"
}

# asi::quoted TEXT - JSON text, or null for none.
asi::quoted() {
    if [[ -n "$1" ]]; then
        printf '"%s"' "$1"
    else
        printf 'null'
    fi
}

# asi::record STATUS - the completion record. Every value is a number, hex, or from a checked alphabet.
asi::record() {
    local -r status="$1" new="${ASI_ATTEMPT_DIR}/.completion.new"
    local sqsh=null text=''
    if ((status == 0)); then
        printf -v sqsh '{"path":"%s","sha256":"%s","size_bytes":%s,"inode":%s,"mtime":%s,"managed":%s}' \
            "${ASI_RESULT_PATH}" "${ASI_RESULT_SHA256}" "${ASI_RESULT_SIZE}" "${ASI_RESULT_INODE}" \
            "${ASI_RESULT_MTIME}" "${ASI_RESULT_MANAGED}"
    fi
    text="$(
        printf '{"schema_version":1,"token":"%s","operation":"%s",' "${ASI_TOKEN}" "${ASI_OPERATION}"
        printf '"exit_status":%d,"phase":"%s","tool_status":%d,' "${status}" "${ASI_PHASE}" "${ASI_TOOL_STATUS}"
        printf '"job_id":%d,"restart_count":%d,' "${SLURM_JOB_ID}" "${SLURM_RESTART_COUNT}"
        printf '"cluster":"%s","node":"%s",' "${SLURM_CLUSTER_NAME//[^A-Za-z0-9._-]/_}" \
            "${SLURMD_NODENAME//[^A-Za-z0-9._-]/_}"
        printf '"elapsed_seconds":%d,"hash_tool":"%s",' "${SECONDS}" "${ASI_HASH_TOOL}"
        printf '"platform_digest":%s,"index_digest":%s,' "$(asi::quoted "${ASI_PLATFORM_DIGEST}")" \
            "$(asi::quoted "${ASI_INDEX_DIGEST}")"
        printf '"machine":"%s","sqsh":%s}' "$(uname -m)" "${sqsh}"
    )"
    if ! { printf '%s\n' "${text}" > "${new}" && { sync "${new}" 2> /dev/null || sync; } \
        && [[ "$(< "${new}")" == "${text}" ]] && mv -f "${new}" "${ASI_ATTEMPT_DIR}/completion.json"; }; then
        printf 'asi: error: the completion record cannot be written: is %s full?\n' "${ASI_ATTEMPT_DIR}" >&2
    fi
}

# asi::forget_credentials - the files with a secret, and Enroot's own copy of it.
asi::forget_credentials() {
    rm -rf -- "${ASI_ATTEMPT_DIR}/enroot-config" "${ASI_ATTEMPT_DIR}/login" "${ASI_ATTEMPT_DIR}"/cache/.tokens.*
}

# asi::finish - exit trap: stop what runs, clean, then and only then record.
asi::finish() {
    local status=$?
    trap - EXIT ERR
    trap '' TERM INT HUP
    set +e
    if [[ -n "${ASI_LOADED}" && -z "${ASI_SUPERSEDED}" ]]; then # what a superseded job finds belongs to another one
        asi::stop_children
        asi::explain_disk "${status}" || status=$?
        asi::unlock_all
        asi::drop_partial
        asi::forget_credentials
        asi::harvest_cache
        asi::clean_scratch
    elif [[ ! -d "${ASI_ATTEMPT_DIR}/claim" ]]; then
        asi::forget_credentials
    fi
    if [[ -z "${ASI_SUPERSEDED}" && ! -e "${ASI_ATTEMPT_DIR}/completion.json" ]]; then
        asi::record "${status}"
    fi
    asi::log "ended in phase ${ASI_PHASE} with status ${status} after ${SECONDS} s"
    exit "${status}"
}

# asi::unexpected LINE - a command failed that nobody expected to fail.
asi::unexpected() {
    asi::hear_signal
    printf 'asi: error: unexpected failure in line %s of phase %s\n' "$1" "${ASI_PHASE}" >&2
    exit "${E_INTERNAL}"
}

asi::load_companions() {
    # shellcheck source=process.sh
    source "${ASI_ATTEMPT_DIR}/process.sh"
    # shellcheck source=squashfs.sh
    source "${ASI_ATTEMPT_DIR}/squashfs.sh"
    # shellcheck source=locks.sh
    source "${ASI_ATTEMPT_DIR}/locks.sh"
    # shellcheck source=store.sh
    source "${ASI_ATTEMPT_DIR}/store.sh"
    # shellcheck source=guards.sh
    source "${ASI_ATTEMPT_DIR}/guards.sh"
    # shellcheck source=enroot.sh
    source "${ASI_ATTEMPT_DIR}/enroot.sh"
    # shellcheck source=inspect.sh
    source "${ASI_ATTEMPT_DIR}/inspect.sh"
    # shellcheck source=login.sh
    source "${ASI_ATTEMPT_DIR}/login.sh"
    # shellcheck source=registry.sh
    source "${ASI_ATTEMPT_DIR}/registry.sh"
    # shellcheck source=manifest.sh
    source "${ASI_ATTEMPT_DIR}/manifest.sh"
    ASI_LOADED=1
}

asi::main() {
    asi::phase verify
    asi::verify
    asi::load_companions
    asi::phase claim
    asi::claim
    asi::phase space
    asi::make_scratch
    asi::check_tools
    asi::check_space
    mkdir -p "${ASI_ATTEMPT_DIR}/output/static"

    if asi::imports; then
        asi::require_enroot
        asi::try_squash_options
        asi::require_login
        if [[ "${ASI_VERIFY_MANIFEST}" == 1 ]]; then
            asi::phase manifest
            asi::verify_manifest
        fi
        asi::phase import
        asi::import
    else
        asi::phase locate
        asi::locate
    fi
    asi::phase check
    asi::begin_hash
    asi::check_squashfs "${ASI_WORK}"
    asi::imports || asi::require_enroot
    asi::phase examine
    if ! asi::in_background asi::read_static_facts; then
        asi::compare_identity
        asi::fail "${E_INTERNAL}" "the image's description was not read to its end"
    fi
    if [[ "${ASI_KIND}" != generic ]]; then
        asi::refuse_unsafe
        asi::phase inspect
        asi::inspect "${ASI_WORK}"
    fi
    asi::end_hash
    asi::phase store
    asi::compare_identity
    asi::keep_result
    asi::phase 'done'
}

if [[ "${ASI_CLEAN-}" != "${ASI_TOKEN}" ]]; then
    asi::reexec
fi
unset ASI_CLEAN
ASI_PHASE=start
ASI_TOOL_STATUS=0
ASI_HASH_TOOL=none
ASI_SUPERSEDED=''
ASI_LOADED=''
ASI_PLATFORM_DIGEST=''
ASI_INDEX_DIGEST=''
trap asi::finish EXIT
trap 'asi::unexpected "${LINENO}"' ERR
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP
asi::main
