# shellcheck shell=bash
# Mark an attempt as this generation's, and keep its job id where a lost sbatch answer left none.

asi::main() {
    asi::begin
    cd "${ASI_ATTEMPT_DIRECTORY}" || asi::refuse unavailable "cannot enter ${ASI_ATTEMPT_DIRECTORY}"
    : > "generations/${ASI_GENERATION}" || asi::refuse unavailable "cannot write below ${ASI_ATTEMPT_DIRECTORY}"
    if [[ -e cancelled ]]; then # since we looked; cancel.sh marks first and looks for us after
        asi::refuse conflict "job ${ASI_JOB_ID} is being cancelled"
    fi
    if [[ ! -e job_id ]]; then
        printf '%s%s\n' "${ASI_JOB_ID}" "${ASI_CLUSTER:+;${ASI_CLUSTER}}" > .job_id.new && mv -f .job_id.new job_id
    fi
}

asi::main
