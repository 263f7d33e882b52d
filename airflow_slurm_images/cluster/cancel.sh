# shellcheck shell=bash
# Cancel one job, only if it still has our name (ids are recycled); without an id those of the attempts in question, and
# where one of them may have a job that nobody knows (the submission was cut off) all of that name, which only one task
# has. Only the queue tells whether it is gone.

readonly ASI_PATIENCE=15 # seconds in which Slurm ends a job by itself, after it took a scancel

ASI_MARKED=() # attempts this cancellation is about
ASI_ADOPTED=''
ASI_DOOMED=() # ids to cancel; none is all of that name

# asi::adopted ATTEMPT - a later generation of tries took the job over (cleared before the kill came to us).
asi::adopted() {
    local marker=''
    for marker in "$1"/generations/*; do
        marker="${marker##*/}"
        if [[ -n "${ASI_GENERATION}" && "${marker}" =~ ^(0|[1-9][0-9]{0,8})$ ]] && ((marker > ASI_GENERATION)); then
            return 0
        fi
    done
    return 1
}

# asi::mark - a cancelled attempt is never adopted, and one that has not started never will (its claim is taken).
# ASI_ATTEMPT names it; `*` is all of the run, nothing is none. Marked first and looked after, as adopt.sh does it the
# other way round: of the two that meet, one at least gives way.
asi::mark() {
    local run='' attempt=''
    run="$(realpath -e -- "${ASI_WORKSPACE}" 2> /dev/null)/users/$(id -un)/runs/${ASI_JOB_NAME#asi-}"
    for attempt in "${run}"/*/; do
        attempt="${attempt%/}"
        if [[ -L "${attempt}" || ! -f "${attempt}/plan.json" ]] \
            || [[ "${ASI_ATTEMPT}" != '*' && "${attempt##*/}" != "${ASI_ATTEMPT}" ]]; then
            continue
        fi
        : >> "${attempt}/cancelled"
        if asi::adopted "${attempt}"; then
            rm -f -- "${attempt}/cancelled"
            ASI_ADOPTED=1
            continue
        fi
        ASI_MARKED+=("${attempt}")
        asi::add_place_of "${attempt}"
        if asi::take_claim "${attempt}"; then
            asi::forget_login "${attempt}"
        fi
    done
}

# asi::first_number FILE - the id that a file begins with; nothing when there is none.
asi::first_number() {
    local text=''
    if [[ -f "$1" && ! -L "$1" ]]; then
        text="$(head -c 64 -- "$1")"
        if [[ "${text}" =~ ^([1-9][0-9]{0,9})([^0-9]|$) ]]; then
            printf '%s\n' "${BASH_REMATCH[1]}"
        fi
    fi
}

# asi::pick - by id where all ids are known: a scancel by name that a slow controller obeys late would hit the next job.
asi::pick() {
    local attempt='' id=''
    local -a known=()
    if [[ -n "${ASI_JOB_ID}" ]]; then
        ASI_DOOMED=("${ASI_JOB_ID}")
        return 0
    fi
    for attempt in "${ASI_MARKED[@]+"${ASI_MARKED[@]}"}"; do
        known=()
        for id in "$(asi::first_number "${attempt}/job_id")" "$(asi::first_number "${attempt}/claim/job_id")"; do
            if [[ -n "${id}" && "${id}" != "${known[0]-}" ]]; then
                known+=("${id}")
            fi
        done
        if ((${#known[@]} == 0)); then
            ASI_DOOMED=()
            return 0
        fi
        ASI_DOOMED+=("${known[@]}")
    done
}

# asi::told - Slurm took this very scancel, or one of all of this name (`*`), a moment ago; another would add nothing.
asi::told() {
    local attempt='' told='' age=0 words=''
    for attempt in "${ASI_MARKED[@]+"${ASI_MARKED[@]}"}"; do
        words=" $(head -c 1024 -- "${attempt}/cancelled" 2> /dev/null) "
        if [[ "${words}" == ' * ' ]] || ((${#ASI_DOOMED[@]} > 0)) && [[ "${words}" == *" ${ASI_DOOMED[0]} "* ]]; then
            told="$(stat -c %Y -- "${attempt}/cancelled" 2> /dev/null)" || continue
            age="$(($(date +%s) - told))"
            if ((age >= 0 && age < ASI_PATIENCE)); then
                return 0
            fi
        fi
    done
    return 1
}

# asi::scancel - on every cluster in question; what Slurm took is noted.
asi::scancel() {
    local cluster='' attempt='' failed=''
    for cluster in "${ASI_PLACES[@]}"; do
        asi::run_on "${cluster}" scancel 15 scancel --name="${ASI_JOB_NAME}" "${ASI_DOOMED[@]+"${ASI_DOOMED[@]}"}" \
            --user="$(id -un)"
        ((ASI_STATUS == 0)) || failed=1
    done
    for attempt in "${ASI_MARKED[@]+"${ASI_MARKED[@]}"}"; do
        if [[ -z "${failed}" ]]; then
            printf '%s\n' "${ASI_DOOMED[*]:-*}" > "${attempt}/cancelled"
        fi
    done
}

asi::main() {
    local cluster=''
    asi::begin
    asi::mark
    asi::pick
    if [[ -z "${ASI_ADOPTED}" ]] && ! asi::told; then
        asi::scancel
    fi
    for cluster in "${ASI_PLACES[@]}"; do
        asi::put_text squeue.cluster "${cluster}"
        asi::run_on "${cluster}" squeue 15 squeue --noheader --all --states=all --user="$(id -un)" \
            --name="${ASI_JOB_NAME}" --format="${ASI_SQUEUE_FORMAT}"
    done
}

asi::main
