# shellcheck shell=bash
# Cancel one job, only if it still has our name (ids are recycled); without an id (the submission was cut off) all
# of that name, which only one task has. Only the queue tells whether it is gone.

asi::main() {
    asi::begin
    asi::run scancel 15 scancel --name="${ASI_JOB_NAME}" ${ASI_JOB_ID:+"${ASI_JOB_ID}"} --user="$(id -un)"
    asi::run squeue 15 squeue --noheader --states=all --user="$(id -un)" --name="${ASI_JOB_NAME}" \
        --format="${ASI_SQUEUE_FORMAT}"
}

asi::main
