# shellcheck shell=bash
# Sent to bash ahead of a script under test: counts every simple command that the main shell is about to run and,
# at number ASI_TEST_KILL, dies as kill -9 would have it. Without ASI_TEST_KILL it writes down each command.
ASI_TEST_STEP=0
asi_test_step() {
    if ((BASH_SUBSHELL == 0)); then
        ASI_TEST_STEP=$((ASI_TEST_STEP + 1))
        if [[ -n "${ASI_TEST_LOG:-}" ]]; then
            printf '%s %s\n' "${ASI_TEST_STEP}" "${BASH_COMMAND%%$'\n'*}" >> "${ASI_TEST_LOG}"
        fi
        if ((ASI_TEST_STEP == ${ASI_TEST_KILL:-0})); then
            kill -KILL "$$"
        fi
        if ((ASI_TEST_STEP == ${ASI_TEST_STOP:-0})); then
            kill -STOP "$$"
        fi
    fi
}
set -o functrace
trap asi_test_step DEBUG
