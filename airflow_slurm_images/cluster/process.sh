# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Running tools so that nothing outlives the job: background and wait (so that traps run), a session of its own,
# a parent-death signal, a time limit, a bounded reader, and a guard that acts when the batch shell is killed alone.

readonly ASI_OUTPUT_LIMIT=8388608 # bytes of one tool's output that are kept

ASI_CHILD=''
declare -gA ASI_BESIDE=() # what runs beside, by name
ASI_SCRATCH=''
ASI_GUARD=''
ASI_GUARDIAN=''
ASI_ALIVE=''
ASI_READER=asi::bounded # what reads a tool's output; it must read to the end

# asi::kill_tree PID [GROUP] - kill PID's session and all its descendants, again until none is left; also the others
# of a process group. By session, because helpers change their group; by descent, because an image may call setsid.
asi::kill_tree() {
    local -r root="$1" group="${2:-none}"
    local stat='' line='' pid='' round=0
    local -a field=()
    for ((round = 0; round < 50; round++)); do
        local -A parent=() doomed=()
        local grew=1
        for stat in /proc/[0-9]*/stat; do
            { IFS= read -r line < "${stat}"; } 2> /dev/null || continue
            pid="${stat#/proc/}"
            pid="${pid%/stat}"
            # shellcheck disable=SC2206 # a letter and numbers; a here-string for each process of a node takes long
            field=(${line##*) })
            if [[ "${field[0]}" == Z ]]; then
                continue
            fi
            parent["${pid}"]="${field[1]}"
            if [[ "${pid}" == "${root}" || "${field[3]}" == "${root}" ]]; then
                doomed["${pid}"]=1
            elif [[ "${field[2]}" == "${group}" ]]; then
                doomed["${pid}"]=1
            fi
        done
        while ((grew)); do
            grew=0
            for pid in "${!parent[@]}"; do
                if [[ -z "${doomed[${pid}]-}" && -n "${doomed[${parent[${pid}]}]-}" ]]; then
                    doomed["${pid}"]=1
                    grew=1
                fi
            done
        done
        if ((${#doomed[@]} == 0)); then
            return 0
        fi
        # All stand still first: a shell whose command is killed before itself would begin the next one meanwhile.
        kill -STOP "${!doomed[@]}" 2> /dev/null || true
        kill -KILL "${!doomed[@]}" 2> /dev/null || true
        sleep 0.1
    done
    return 1
}

# asi::orphaned - in a subshell: is the batch shell gone?
asi::orphaned() {
    local line=''
    IFS= read -r line < "/proc/${BASHPID}/stat" || return 0
    [[ "${line##*) }" != ?" $$ "* ]] # state and parent stand behind the name
}

# asi::guard FIFO SCRATCH - outlives a batch shell that is killed alone, and ends what the shell had running. Its parent
# tells it, not the end of the pipe: a shell that dies early never opens that, and what a shell runs in the foreground
# (a hash, a copy) holds it open. So both open it for reading and writing, which waits for nobody.
asi::guard() {
    local -r fifo="$1" scratch="$2"
    local word='' value='' child='' status=0
    trap '' TERM INT HUP
    while :; do
        status=0
        read -r -t 1 word value || status=$?
        if ((status > 128)) && ! asi::orphaned; then
            continue
        fi
        if ((status != 0)); then
            break
        fi
        case "${word}" in
            watch) child="${value}" ;;
            forget) child='' ;;
            done) return 0 ;;
        esac
    done <> "${fifo}"
    asi::kill_tree "${child:-none}" "$$" || true
    asi::forget_credentials
    chmod -R u+rwX -- "${scratch}" 2> /dev/null || true
    rm -rf -- "${scratch}"
}

# asi::sweep_scratch ROOT - remove what killed jobs of ours left on this node. A job holds a lock on its own scratch
# while it lives; a directory of another node (ROOT is shared) is left to that node, as its lock may not reach here.
asi::sweep_scratch() {
    local old=''
    for old in "$1"/asi-*.??????; do
        if [[ -d "${old}" && ! -L "${old}" && -O "${old}" && -f "${old}/alive" && -f "${old}/node" ]] \
            && [[ "$(head -n 1 -- "${old}/node")" == "$(uname -n)" ]] \
            && flock --nonblock "${old}/alive" true 2> /dev/null; then
            chmod -R u+rwX -- "${old}" 2> /dev/null || true
            rm -rf -- "${old}"
            asi::log "removed the scratch of a dead job: ${old}"
        fi
    done
}

# asi::make_scratch - private node-local directory, never below HOME.
asi::make_scratch() {
    local -r root="${ASI_SCRATCH_ROOT:-${TMPDIR:-/tmp}}"
    if [[ ! "${root}" =~ ^/[A-Za-z0-9._/+@%=~-]*$ ]]; then
        asi::fail "${E_SCRATCH}" "the scratch root '${root}' holds a character that Enroot cannot mount"
    fi
    asi::sweep_scratch "${root}"
    ASI_SCRATCH="$(mktemp -d "${root}/asi-${ASI_TOKEN}.XXXXXX")" \
        || asi::fail "${E_SCRATCH}" "cannot make a private directory below ${root} on ${SLURMD_NODENAME}"
    mkdir "${ASI_SCRATCH}"/{run,data,tmp,home,mount,made}
    exec {ASI_ALIVE}> "${ASI_SCRATCH}/alive"
    flock --nonblock "${ASI_ALIVE}"
    uname -n > "${ASI_SCRATCH}/node" # only now: a sweep looks at what has a node, and asks for the lock
    mkfifo "${ASI_SCRATCH}/guard"
    set -m # a process group of its own: Slurm kills that of a batch shell which ended
    asi::guard "${ASI_SCRATCH}/guard" "${ASI_SCRATCH}" < /dev/null > /dev/null 2>&1 &
    ASI_GUARDIAN=$!
    set +m
    exec {ASI_GUARD}<> "${ASI_SCRATCH}/guard"
    asi::log "scratch ${ASI_SCRATCH}"
}

asi::clean_scratch() {
    if [[ -n "${ASI_SCRATCH}" ]]; then
        chmod -R u+rwX "${ASI_SCRATCH}" 2> /dev/null || true
        # Twice: the tools of a cancelled job clean up too, and Slurm may give them a moment longer.
        rm -rf -- "${ASI_SCRATCH}" || rm -rf -- "${ASI_SCRATCH}" || true
    fi
    if [[ -n "${ASI_GUARD}" ]]; then # last, so that the guard finishes this when Slurm's patience is over
        printf 'done\n' >&"${ASI_GUARD}" || true
        exec {ASI_GUARD}>&-
        ASI_GUARD=''
    fi
}

# asi::bounded LOG - pass the first bytes on and keep them in LOG; swallow the rest so that the writer never blocks.
asi::bounded() {
    # unbuffered: the task log streams what the tool says when it says it
    stdbuf -o0 head -c "${ASI_OUTPUT_LIMIT}" | tee -- "$1" || true # a full disk must not break the writer's pipe
    cat > /dev/null
}

# asi::capture FILE [BYTES] - keep the first bytes in FILE only, read all; fails where they were not all kept.
asi::capture() {
    local status=0
    head -c "${2:-${ASI_OUTPUT_LIMIT}}" > "$1" || status=$?
    cat > /dev/null
    return "${status}"
}

# asi::stop_children - the tool, then whatever else runs beside. No wait after it: where the signal that ended the shell's
# own wait came together with the child's death, bash has forgotten that death and would wait for ever (for the guard).
asi::stop_children() {
    local pid=''
    if [[ -n "${ASI_CHILD}" ]]; then
        asi::kill_tree "${ASI_CHILD}" || true
        ASI_CHILD=''
    fi
    # Running ones only: what ended while nobody waited may have left its number to another process.
    for pid in $(jobs -rp); do
        if [[ "${pid}" != "${ASI_GUARDIAN}" ]]; then
            asi::kill_tree "${pid}" || true
        fi
    done
}

# asi::begin NAME FUNCTION... - run a long function beside the job; what it gives is in ASI_SCRATCH/NAME. It stays in our
# process group, where the guard finds it, and whatever it started, without being told.
asi::begin() {
    local -r name="$1"
    shift
    {
        trap - ERR # it fails where it is waited for
        "$@"
    } > "${ASI_SCRATCH}/${name}" < /dev/null {ASI_GUARD}>&- &
    ASI_BESIDE["${name}"]=$!
}

# asi::end NAME - wait for it, so that traps run at once; its status is the function's.
asi::end() {
    local status=0
    wait "${ASI_BESIDE["$1"]}" || status=$?
    unset "ASI_BESIDE[$1]"
    asi::after_signal "${status}"
    return "${status}"
}

# asi::in_background FUNCTION... - run a long function so that traps run at once; what it gives is in ASI_SCRATCH/answer.
asi::in_background() {
    asi::begin answer "$@"
    asi::end answer
}

# asi::after_signal STATUS - Slurm signals the batch shell last: when it ends the job, our own trap is to tell.
asi::after_signal() {
    if (($1 > 128)); then
        sleep 2
    fi
}

# asi::bare COMMAND... - in a subshell: become COMMAND, which gets the three standard descriptors and no other. A
# process can open again, for writing too, what a descriptor leads to.
asi::bare() {
    local descriptor=''
    for descriptor in /proc/self/fd/*; do
        descriptor="${descriptor##*/}"
        if ((descriptor > 2)); then
            exec {descriptor}>&-
        fi
    done
    exec "$@"
}

# asi::tool LOG SECONDS COMMAND... - run COMMAND; its status is the function's. 124 or 137: the time was up. Where the
# reader fails, nobody knows what COMMAND said, and decisions hang on it: the job ends.
# The pipe is a new one each time: it is the image's standard output too, which may change its mode.
asi::tool() {
    local -r log="$1" limit="$2" pipe="${ASI_SCRATCH}/pipe"
    shift 2
    local reader='' status=0 lost=0 out=''
    rm -f -- "${pipe}"
    mkfifo -- "${pipe}"
    "${ASI_READER}" "${log}" < "${pipe}" {ASI_GUARD}>&- &
    reader=$!
    exec {out}> "${pipe}"
    asi::bare setsid setpriv --pdeathsig KILL timeout --kill-after=10 "${limit}" "$@" < /dev/null >&"${out}" 2>&1 &
    ASI_CHILD=$!
    printf 'watch %s\n' "${ASI_CHILD}" >&"${ASI_GUARD}"
    exec {out}>&-
    wait "${ASI_CHILD}" || status=$?
    asi::kill_tree "${ASI_CHILD}" || true # whatever the tool left behind
    ASI_CHILD=''
    printf 'forget -\n' >&"${ASI_GUARD}"
    wait "${reader}" || lost=$?
    asi::after_signal "$((status > lost ? status : lost))"
    ASI_TOOL_STATUS="${status}"
    if ((lost != 0)); then
        asi::fail "${E_INTERNAL}" "what a tool said could not be kept in ${log} (status ${lost})"
    fi
    return "${status}"
}

# asi::quietly FILE SECONDS COMMAND... - the same; what COMMAND says goes to FILE and not to the job's output.
asi::quietly() {
    local status=0
    ASI_READER=asi::capture
    asi::tool "$@" || status=$?
    ASI_READER=asi::bounded
    return "${status}"
}
