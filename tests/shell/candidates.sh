# shellcheck shell=bash
# What prepare.sh does with records.sh.
asi::main() {
    asi::begin
    asi::put_candidates "${ASI_SOURCE_DIGEST}"
}

asi::main
