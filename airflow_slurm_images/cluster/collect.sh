# shellcheck shell=bash
# What one attempt left: its records, the facts, and the ends of its logs.

asi::main() {
    local name=''
    asi::begin
    cd "${ASI_ATTEMPT_DIRECTORY}" || asi::refuse unavailable "cannot enter ${ASI_ATTEMPT_DIRECTORY}"
    ls -a > /dev/null
    asi::put_file plan plan.json 1048577
    asi::put_file completion completion.json 1048577
    if [[ -d output && ! -L output && -d output/static && ! -L output/static ]]; then
        asi::put_file facts output/facts.json 1048577
        for name in superblock os-release environment rc elf dpkg-count; do
            asi::put_file "static.${name}" "output/static/${name}" 262144
        done
    fi
    for name in slurm.out enroot.log inspect.log; do
        if [[ -f "${name}" && ! -L "${name}" ]]; then
            tail -c 8192 -- "${name}" | asi::put "tail.${name}"
        fi
    done
}

asi::main
