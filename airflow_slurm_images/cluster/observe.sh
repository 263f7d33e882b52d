# shellcheck shell=bash
# One look at all waiting jobs of one cluster: their completion records, phases and new output, one squeue for
# all, and accounting only for those that neither record nor queue explains.
# Standard input: one line for each of ASI_JOBS jobs, `INDEX JOB_ID JOB_NAME ATTEMPT_DIRECTORY STREAM OFFSET BYTES KEEP
# TOKEN`. No here-string and no here-document: before bash 5.1 they need room for a temporary file, and a look that is
# cut short must never pass for an empty queue.
# OFFSET `kept` goes on where STREAM was left: a restarted triggerer knows nothing, the run directory does. KEEP is what
# to keep there from now on.

readonly ASI_CONTROL_SECONDS=20 # for all questions to the controller about single jobs in one look
readonly ASI_CONTROL_JOBS=20
readonly ASI_WORDS=9 # of one line

ASI_NAMES=()
ASI_OPEN=()
declare -A ASI_QUEUED=() # of a job that has not begun: the file that was written at its submission -> its index

asi::look() {
    local -r index="$1" id="$2" directory="$4" kept="$4/streamed.$5" bytes="$7" keep="$8" token="$9"
    local offset="$6" old=''
    if [[ ! -d "${directory}" || -L "${directory}" ]]; then
        asi::put_text "${index}.missing" "${directory}"
    fi
    asi::put_file "${index}.phase" "${directory}/phase" 256
    asi::put_file "${index}.claim" "${directory}/claim/job_id" 256
    if [[ ! -e "${directory}/claim" ]]; then
        ASI_QUEUED["${directory}/submitted_at"]="${index}"
    fi
    if [[ "${offset}" == kept ]]; then
        offset=0
        if [[ -f "${kept}" && ! -L "${kept}" ]]; then
            read -r offset < "${kept}"
        fi
    elif ((keep > 0)); then
        if [[ -f "${kept}" && ! -L "${kept}" ]]; then
            read -r old < "${kept}"
        fi
        if [[ "${old}" != "${keep}" ]]; then
            printf '%s\n' "${keep}" > "${kept}.new" && mv -f -- "${kept}.new" "${kept}"
        fi
    fi
    [[ "${offset}" =~ ^(0|[1-9][0-9]{0,17})$ ]] || offset=0
    if [[ "${offset}" != "$6" ]]; then # a process or more for each of many jobs is what makes a look expensive
        asi::put_text "${index}.offset" "${offset}"
    fi
    if ((bytes > 0)) && [[ -f "${directory}/slurm.out" && ! -L "${directory}/slurm.out" ]]; then
        tail -c "+$((offset + 1))" -- "${directory}/slurm.out" | head -c "${bytes}" | asi::put "${index}.log"
    fi
    # The record last: output that is there when the record is there is in this answer or the next one. Of a job
    # that did not end well the queue tells more (time limit, cancelled), so it is asked too.
    asi::put_file "${index}.completion" "${directory}/completion.json" 1048577
    if [[ -f "${directory}/completion.json" ]]; then
        asi::forget_login "${directory}"
    fi
    if grep -q "\"token\":\"${token}\".*\"exit_status\":0," -- "${directory}/completion.json" 2> /dev/null; then
        asi::put_text "${index}.over" 1 # said, not left to be read out of a queue that was not asked
    else
        ASI_OPEN+=("${id}")
    fi
}

# asi::queued_for - `INDEX SECONDS` of each job that has not begun, since its submission: a restarted triggerer does not
# know. By the cluster's clocks alone, and one process for all.
asi::queued_for() {
    local now='' time='' file=''
    printf -v now '%(%s)T' -1
    stat --format='%Y %n' -- "${!ASI_QUEUED[@]}" 2> /dev/null | while read -r time file; do
        if ((time <= now)); then
            printf '%s %d\n' "${ASI_QUEUED["${file}"]}" "$((now - time))"
        fi
    done | asi::put queued_for
}

# asi::ask_controller ID... - about jobs one by one; beginning anywhere, so that those which a slow controller leaves no
# time for have their turn another time.
asi::ask_controller() {
    local -r end="$((SECONDS + ASI_CONTROL_SECONDS))" first="$((RANDOM % $#))"
    local -a turn=("${@:first + 1}" "${@:1:first}")
    local id=''
    for id in "${turn[@]:0:ASI_CONTROL_JOBS}"; do
        if ((SECONDS >= end)); then
            break
        fi
        asi::run "scontrol.${id}" "$((end - SECONDS < 15 ? end - SECONDS : 15))" scontrol --oneliner show job "${id}"
    done
}

asi::main() {
    local id='' active='' names='' ids=''
    local -i at=0
    local -a word=() words=() doubtful=() directories=()
    asi::begin
    while read -r -a word; do
        if ((${#word[@]} == ASI_WORDS)); then
            words+=("${word[@]}")
            ASI_NAMES+=("${word[2]}")
            directories+=("${word[3]}")
        fi
    done <&"${ASI_PAYLOAD}"
    if ((${#directories[@]} == 0 || ${#directories[@]} != ASI_JOBS)); then
        asi::refuse unavailable "the login node read ${#directories[@]} of ${ASI_JOBS} jobs to look at"
    fi
    ls -a -- "${directories[@]}" > /dev/null 2>&1 # a look at a directory refreshes a file server's attribute cache
    for ((at = 0; at < ${#words[@]}; at += ASI_WORDS)); do
        asi::look "${words[@]:at:ASI_WORDS}"
    done
    if ((${#ASI_QUEUED[@]} > 0)); then
        asi::queued_for
    fi
    if ((${#ASI_OPEN[@]} == 0)); then
        return 0
    fi
    printf -v names '%s,' "${ASI_NAMES[@]}"
    asi::run squeue 30 squeue --noheader --all --states=all --user="$(id -un)" --name="${names%,}" \
        --format="${ASI_SQUEUE_FORMAT}"
    if ((ASI_STATUS != 0)); then
        return 0
    fi
    active=$'\n'"$(asi::active_jobs)"$'\n'
    for id in "${ASI_OPEN[@]}"; do
        if [[ "${active}" != *$'\n'"${id}"$'\n'* ]]; then
            doubtful+=("${id}")
        fi
    done
    if ((${#doubtful[@]} == 0)); then
        return 0
    fi
    printf -v ids '%s,' "${doubtful[@]}"
    # By id alone: accounting cuts a long list of names. Who reads the rows compares the names.
    asi::run sacct 30 sacct -X --noheader --parsable2 --jobs="${ids%,}" \
        --starttime="${ASI_SINCE}" --format="${ASI_SACCT_FIELDS}"
    asi::ask_controller "${doubtful[@]}"
}

asi::main
