# shellcheck shell=bash
# shellcheck disable=SC2034,SC1090,SC1091 # what is set here is read by the files under test
# Runs the store part of the job on given directories, without Slurm and Enroot.
# Arguments: the directory of the shell files; a size for a small file system to mount as the store, or ''.
set +o posix
set -Eeuo pipefail
umask 0000

cluster="$1"
if [[ -n "$2" ]]; then
    mount -t tmpfs -o "size=$2" none "${ASI_STORE}"
fi
readonly E_INTERNAL=70 E_NO_SPACE=73 E_CHANGED=81 E_STORE_CORRUPT=87 E_STORE_WRITE=88
scratch="${ASI_SCRATCH}"

ASI_EXISTING_SHA256="${ASI_EXISTING_SHA256:-}"

asi::imports() { [[ "${ASI_OPERATION}" == import_oci && -z "${ASI_EXISTING_SHA256}" ]]; }
asi::phase() { ASI_PHASE="$1"; }
asi::log() { printf 'asi: %s\n' "$*"; }
asi::fail() {
    local -r code="$1"
    shift
    printf 'asi: error: %s\n' "$*" >&2
    exit "${code}"
}
asi_test_finish() {
    local -r status=$?
    trap - EXIT ERR
    asi::unlock_all
    asi::drop_partial
    printf 'left: %s\n' "$(find "${ASI_STORE}" -mindepth 1 -printf '%f ')"
    exit "${status}"
}
trap asi_test_finish EXIT
trap 'exit 70' ERR
trap 'exit 143' TERM

source "${cluster}/process.sh"
source "${cluster}/squashfs.sh"
source "${cluster}/locks.sh"
source "${cluster}/store.sh"
ASI_HASH_TOOL=sha256sum
ASI_PHASE=start
ASI_SCRATCH="${scratch}"
exec {ASI_GUARD}> /dev/null
if [[ -n "${ASI_TEST_HOOKS:-}" ]]; then
    source "${ASI_TEST_HOOKS}"
fi

asi::check_space
asi::begin_hash
asi::end_hash
asi::compare_identity
asi::keep_result
printf 'result: %s %s %s %s %s %s\n' "${ASI_RESULT_PATH}" "${ASI_RESULT_SHA256}" "${ASI_RESULT_SIZE}" \
    "${ASI_RESULT_INODE}" "${ASI_RESULT_MTIME}" "${ASI_RESULT_MANAGED}"
