# shellcheck shell=bash
# Compare the staged bytes once more, run sbatch, and keep its answer in the attempt directory before anything else.

asi::main() {
    local submitted=''
    asi::begin
    cd "${ASI_ATTEMPT_DIRECTORY}" || asi::refuse unavailable "cannot enter ${ASI_ATTEMPT_DIRECTORY}"
    if [[ "$(sha256sum < staged.sha256)" != "${ASI_STAGED_SHA256}  -" ]] \
        || ! sha256sum --check --strict --quiet staged.sha256 > /dev/null; then
        asi::refuse integrity "a staged file in ${ASI_ATTEMPT_DIRECTORY} differs from its checksum; nothing was submitted"
    fi
    submitted="$(date +%Y-%m-%dT%H:%M:%S)"
    printf '%s\n' "${ASI_CLUSTER}" > cluster
    printf '%s\n' "${submitted}" > submitted_at
    asi::put_text submitted_at "${submitted}"
    asi::run sbatch 60 sbatch --parsable --export=NIL --no-requeue job.sbatch
    if ((ASI_STATUS == 0)); then
        printf '%s\n' "${ASI_OUTPUT}" > .job_id.new && mv -f .job_id.new job_id
    fi
}

asi::main
