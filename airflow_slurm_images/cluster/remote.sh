# shellcheck shell=bash
# Shared by every command that runs over the SSH channel as `/bin/bash -p -s`: a clean Slurm environment, and
# results between random markers, so that what login scripts print is never read as ours.

# Login scripts may have exported POSIXLY_CORRECT; in that mode bash knows no function names like ours.
set +o posix
set -uo pipefail
umask 077
export LC_ALL=C

ASI_PAYLOAD='' # descriptor of what follows the script on standard input
ASI_PLACES=("${ASI_CLUSTER-}") # clusters that may have the jobs in question; an empty name is the login node's own

# asi::begin - the result starts here; the exit trap ends it with the status, whatever happens. From here on bash finds
# the end of its own input, so that an error which throws it back to reading commands never makes it run the payload.
asi::begin() {
    local name=''
    # shellcheck disable=SC2034 # read by what takes a payload
    exec {ASI_PAYLOAD}<&0 < /dev/null
    trap 'asi::end "$?"' EXIT
    printf '\n%s begin\n' "${ASI_MARK}"
    while IFS= read -r name; do
        case "${name}" in
            SLURM_CONF) ;;
            TAR_OPTIONS | GREP_OPTIONS | POSIXLY_CORRECT | CDPATH | BASH_ENV | ENV | LD_PRELOAD) unset "${name}" ;;
            SLURM_* | SBATCH_* | SQUEUE_* | SACCT_* | SCANCEL_* | SCONTROL_* | PMIX_*) unset "${name}" ;;
        esac
    done < <(compgen -e)
    if [[ -n "${ASI_SLURM_CONF}" ]]; then
        export SLURM_CONF="${ASI_SLURM_CONF}"
    fi
    if [[ -n "${ASI_SLURM_BIN}" ]]; then
        PATH="${ASI_SLURM_BIN}:${PATH}"
    fi
    # Last, for accounts whose login scripts lost the system's own directories.
    export PATH="${PATH}:/usr/local/bin:/usr/bin:/bin"
}

asi::end() {
    trap - EXIT
    printf '\n%s end %s\n' "${ASI_MARK}" "$1"
}

# asi::put NAME - one field of the result; its bytes come from standard input. A field that could not be told whole is
# spoilt, so that what is left of it, or nothing, is not taken for it.
asi::put() {
    printf '\n%s %s ' "${ASI_MARK}" "$1"
    base64 | tr -d '\n' || printf '!'
    printf '\n'
}

# asi::put_text NAME TEXT
asi::put_text() {
    printf '%s' "$2" | asi::put "$1"
}

# asi::put_file NAME FILE BYTES - a regular file, never through a link, bounded; nothing when it is not there.
asi::put_file() {
    if [[ -f "$2" && ! -L "$2" ]]; then
        head -c "$3" -- "$2" | asi::put "$1"
    fi
}

# asi::forget_login ATTEMPT - the login staged for a job that has ended or never runs: where its node died, or it never
# started, the job itself could not remove it.
asi::forget_login() {
    local path=''
    for path in "$1/enroot-config" "$1/login" "$1"/cache/.tokens.*; do
        if [[ -e "${path}" && ! -L "$1" ]]; then
            rm -rf -- "${path}"
        fi
    done
}

# asi::take_claim ATTEMPT - true where no job has begun the attempt; then none ever will: one whose sbatch was answered late
# finds the claim taken and ends as superseded.
asi::take_claim() {
    if [[ ! -L "$1" ]] && mkdir -m 0700 -- "$1/claim" 2> /dev/null; then
        printf '0 0\n' > "$1/claim/job_id"
        return 0
    fi
    asi::fenced "$1"
}

# asi::fenced ATTEMPT - was its claim taken so that no job begins it?
asi::fenced() {
    local owner=''
    [[ -f "$1/claim/job_id" ]] && read -r owner _ < "$1/claim/job_id" && [[ "${owner}" == 0 ]]
}

# asi::versions HISTORY - numbers of an alias's versions, newest first.
asi::versions() {
    find "$1" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | grep -Ex '[1-9][0-9]{0,8}' | sort -rn
}

# asi::current HISTORY - number of the committed version; nothing when there is none. The link's text is somebody
# else's in a shared workspace: nothing but a number may reach an arithmetic expression.
asi::current() {
    local -r number="$(readlink -- "$1/current" 2> /dev/null)"
    if [[ "${number}" =~ ^[1-9][0-9]{0,8}$ ]]; then
        printf '%s\n' "${number}"
    fi
}

# asi::fixed_link NAME SUFFIX - text of the link aliases/<NAME>.SUFFIX.
asi::fixed_link() {
    case "$2" in
        sqsh) printf '%s.d/current/image.sqsh\n' "$1" ;;
        json) printf '%s.d/current/record.json\n' "$1" ;;
    esac
}

# What a record ends with (see to_publish in core/catalog.py). Nothing that an image could have chosen stands there.
# shellcheck disable=SC2034 # read by publish.sh and records.sh
readonly ASI_REUSE_KEY='"reuse_key": "[0-9a-f]{64}"\}\}$'

# asi::active_jobs - ids of the jobs in squeue's answer (ASI_OUTPUT) that may still run: all but those in a state that
# is an end, so a held job, or a state of a later Slurm, is active.
asi::active_jobs() {
    printf '%s\n' "${ASI_OUTPUT}" | awk -F '|' 'NF > 1 && $2 !~ /^(BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|REVOKED|TIMEOUT)/ { print $1 }'
}

# asi::refuse WORD TEXT - the command cannot be done; WORD says which error it becomes.
asi::refuse() {
    asi::put_text refused "$1"
    asi::put_text message "$2"
    exit 3
}

# asi::add_place_of ATTEMPT - add to ASI_PLACES the cluster that has the attempt's job: the one sbatch answered, else the
# one it was told.
asi::add_place_of() {
    local text='' cluster="${ASI_CLUSTER}" known=''
    if [[ -f "$1/cluster" && ! -L "$1/cluster" ]]; then
        IFS= read -r cluster < "$1/cluster"
    fi
    if [[ -f "$1/job_id" && ! -L "$1/job_id" ]]; then
        IFS= read -r text < "$1/job_id"
        if [[ "${text}" =~ ^[^\;]*(\;|' on cluster ')([A-Za-z0-9_.-]+) ]]; then
            cluster="${BASH_REMATCH[2]}"
        fi
    fi
    for known in "${ASI_PLACES[@]}"; do
        if [[ "${known}" == "${cluster}" ]]; then
            return 0
        fi
    done
    ASI_PLACES+=("${cluster}")
}

# asi::run NAME SECONDS COMMAND... - run a Slurm command, on the profile's cluster when it names one.
asi::run() {
    asi::run_on "${ASI_CLUSTER}" "$@"
}

# asi::run_on CLUSTER NAME SECONDS COMMAND... - run a Slurm command; put its status, output and errors as NAME.rc,
# NAME.out, NAME.err and leave status, output and the beginning of the errors in ASI_STATUS, ASI_OUTPUT and ASI_ERRORS.
asi::run_on() {
    local -r cluster="$1" name="$2" limit="$3" command="$4"
    local errors=''
    shift 4
    if [[ -n "${cluster}" ]]; then
        set -- -M "${cluster}" "$@"
    fi
    errors="$(mktemp 2> /dev/null || mktemp /tmp/asi.XXXXXXXXXX)" || asi::refuse unavailable "mktemp failed on the login node"
    ASI_STATUS=0
    ASI_OUTPUT="$(timeout --kill-after=5 "${limit}" "${command}" "$@" < /dev/null 2> "${errors}")" || ASI_STATUS=$?
    asi::put_text "${name}.rc" "${ASI_STATUS}"
    asi::put_text "${name}.out" "${ASI_OUTPUT}"
    head -c 65536 -- "${errors}" | asi::put "${name}.err"
    # shellcheck disable=SC2034 # read by prepare.sh
    ASI_ERRORS="$(head -c 100 -- "${errors}" | tr -d '\0')"
    rm -f -- "${errors}"
}
