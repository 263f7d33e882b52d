# shellcheck shell=bash
# Cancel one job, only if it still has our name (ids are recycled); without an id (the submission was cut off) all
# of that name, which only one task has. Only the queue tells whether it is gone.

readonly ASI_PATIENCE=15 # seconds in which Slurm ends a job by itself, after it took a scancel

ASI_MARKED=() # attempts this cancellation is about
ASI_ADOPTED=''

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
        if mkdir -m 0700 -- "${attempt}/claim" 2> /dev/null; then
            printf '0 0\n' > "${attempt}/claim/job_id"
            asi::forget_login "${attempt}"
        fi
    done
}

# asi::told - Slurm took a scancel of this very job a moment ago; another one would add nothing.
asi::told() {
    local attempt='' told='' age=0
    for attempt in "${ASI_MARKED[@]+"${ASI_MARKED[@]}"}"; do
        if [[ -n "${ASI_JOB_ID}" && "$(head -c 64 -- "${attempt}/cancelled" 2> /dev/null)" == "${ASI_JOB_ID}" ]]; then
            told="$(stat -c %Y -- "${attempt}/cancelled" 2> /dev/null)" || continue
            age="$(($(date +%s) - told))"
            if ((age >= 0 && age < ASI_PATIENCE)); then
                return 0
            fi
        fi
    done
    return 1
}

asi::main() {
    local attempt=''
    asi::begin
    asi::mark
    if [[ -z "${ASI_ADOPTED}" ]] && ! asi::told; then
        asi::run scancel 15 scancel --name="${ASI_JOB_NAME}" ${ASI_JOB_ID:+"${ASI_JOB_ID}"} --user="$(id -un)"
        for attempt in "${ASI_MARKED[@]+"${ASI_MARKED[@]}"}"; do
            if ((ASI_STATUS == 0)); then
                printf '%s\n' "${ASI_JOB_ID}" > "${attempt}/cancelled"
            fi
        done
    fi
    asi::run squeue 15 squeue --noheader --states=all --user="$(id -un)" --name="${ASI_JOB_NAME}" \
        --format="${ASI_SQUEUE_FORMAT}"
}

asi::main
