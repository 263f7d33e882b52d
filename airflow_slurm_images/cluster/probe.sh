# shellcheck shell=bash
# For "test connection": what is there of Slurm, the partition and Enroot. The job is one step of a minute at most,
# and only if a node is free at once.

asi::main() {
    local words=()
    asi::begin
    asi::put_text login "$(id -un)"
    asi::put_text host "$(uname -n)"
    asi::put_text slurm "$(timeout --kill-after=5 15 sbatch --version 2> /dev/null)"
    asi::run sinfo 20 sinfo --noheader --all --format='%R %a %D %T'
    words=(srun --immediate=15 --quiet --ntasks=1 --cpus-per-task=1 --mem=64M --time=1 --job-name=asi-connection-test)
    [[ -z "${ASI_PARTITION}" ]] || words+=(--partition "${ASI_PARTITION}")
    [[ -z "${ASI_ACCOUNT}" ]] || words+=(--account "${ASI_ACCOUNT}")
    [[ -z "${ASI_QOS}" ]] || words+=(--qos "${ASI_QOS}")
    [[ -z "${ASI_RESERVATION}" ]] || words+=(--reservation "${ASI_RESERVATION}")
    [[ -z "${ASI_CONSTRAINT}" ]] || words+=(--constraint "${ASI_CONSTRAINT}")
    [[ -z "${ASI_EXCLUDE}" ]] || words+=(--exclude "${ASI_EXCLUDE}")
    asi::run enroot 45 "${words[@]}" env "PATH=${ASI_NODE_PATH}" enroot version
}

asi::main
