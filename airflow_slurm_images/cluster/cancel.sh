# shellcheck shell=bash
# Cancel one job, only if it still has our name (ids are recycled); without an id (the submission was cut off) all
# of that name, which only one task has. Only the queue tells whether it is gone.

# asi::mark - a cancelled attempt is never adopted, and one that has not started never will (its claim is taken).
# ASI_ATTEMPT names it; `*` is all of the run, nothing is none.
asi::mark() {
    local run='' attempt=''
    run="$(realpath -e -- "${ASI_WORKSPACE}" 2> /dev/null)/users/$(id -un)/runs/${ASI_JOB_NAME#asi-}"
    for attempt in "${run}"/*/; do
        attempt="${attempt%/}"
        if [[ -L "${attempt}" || ! -f "${attempt}/plan.json" ]] \
            || [[ "${ASI_ATTEMPT}" != '*' && "${attempt##*/}" != "${ASI_ATTEMPT}" ]]; then
            continue
        fi
        : > "${attempt}/cancelled"
        if mkdir -m 0700 -- "${attempt}/claim" 2> /dev/null; then
            printf '0 0\n' > "${attempt}/claim/job_id"
            asi::forget_login "${attempt}"
        fi
    done
}

asi::main() {
    asi::begin
    asi::mark
    asi::run scancel 15 scancel --name="${ASI_JOB_NAME}" ${ASI_JOB_ID:+"${ASI_JOB_ID}"} --user="$(id -un)"
    asi::run squeue 15 squeue --noheader --states=all --user="$(id -un)" --name="${ASI_JOB_NAME}" \
        --format="${ASI_SQUEUE_FORMAT}"
}

asi::main
