# shellcheck shell=bash
# What one attempt left: its records, the facts, and the ends of its logs. ASI_ENDED is 1 where the job is known to
# have ended, with or without a record.

asi::main() {
    local name=''
    asi::begin
    cd "${ASI_ATTEMPT_DIRECTORY}" || asi::refuse unavailable "cannot enter ${ASI_ATTEMPT_DIRECTORY}"
    ls -a . output output/static > /dev/null 2>&1 || true
    asi::put_file plan plan.json 1048577
    asi::put_file completion completion.json 1048577
    if [[ -d output && ! -L output && -d output/static && ! -L output/static ]]; then
        asi::put_file facts output/facts.json 1048577
        for name in superblock os-release environment rc elf dpkg-count oci-config; do
            asi::put_file "static.${name}" "output/static/${name}" 262144
        done
    fi
    if [[ "${ASI_ENDED}" == 1 || -f completion.json ]]; then
        asi::forget_login "${ASI_ATTEMPT_DIRECTORY}"
    fi
    for name in slurm.out enroot.log inspect.log; do
        if [[ -f "${name}" && ! -L "${name}" ]]; then
            tail -c 8192 -- "${name}" | asi::put "tail.${name}"
        fi
    done
}

asi::main
