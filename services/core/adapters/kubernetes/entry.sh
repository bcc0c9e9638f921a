#!/bin/sh
# The first process of a learner's container: starts the command, waits for its end, records both
# (docs/adr/0019-learners-as-pods.md; services.core.runtime.pod_layout names the files and variables).
#
#     entry.sh [ROOT [MESSAGE]]        ROOT: /weft. MESSAGE: the file of the container's termination message.
#
# It guarantees, like the shim of one machine:
# * The command runs at most once, after `go`, in a session and process group of its own.
# * exit.json has a stop cause only if the command lived when the stop was read.
# * At the end no process of the command's group is left; in a container none at all.
# * It ends with the command's shell code, once `stored` exists or the store timeout is over: until then the helper can be
#   started again and go on storing.
#
# POSIX only, tried with dash and busybox. Other programs that it needs: date, head, mkdir, mv, rm, setsid, sleep, tail, wc.
# The command's output goes to files of the run; the container's log is a copy of it, with gaps if there is very much.

set -u
root=${1:-/weft}
message=${2:-/dev/termination-log}
control=$root/control
run=$root/runs/1
job=$root/job
command=$WEFT_POD_COMMAND
store_timeout_s=${WEFT_POD_STORE_TIMEOUT_S:-0}
grace_s=${WEFT_POD_GRACE_S:-30}
file_bytes=${WEFT_POD_FILE_BYTES:-}
unset WEFT_POD_COMMAND WEFT_POD_STORE_TIMEOUT_S WEFT_POD_GRACE_S WEFT_POD_FILE_BYTES WEFT_POD_LEARNER

COPIED_MOST=2097152 # Bytes of one stream that are copied to the container's log at once.
STUCK=1000          # A process that survives SIGKILL for so long hangs in the kernel. Centiseconds.
NEVER=-1
COPIED_EACH=200     # Centiseconds between two copies of the output.
MEASURED_EACH=400   # The same of two measurements of what the container uses.

umask 022
# Both are also the hard limit. A core file holds the learner's memory, and counts for the bound of its volume. The file of
# the termination message is on the node's disk, on no volume with a bound, and the command may write it.
ulimit -c 0
[ -z "$file_bytes" ] || ulimit -f $((file_bytes / 512))

# --- reading --------------------------------------------------------------------------------------------------------

# Sets $now: centiseconds of the machine's uptime.
clock() {
    read -r uptime _ < /proc/uptime
    now=$((${uptime%.*} * 100 + 1${uptime#*.} - 100))
}

# Sets $time: Unix milliseconds; in whole seconds where `date` knows no smaller part.
stamp() {
    time=$(date +%s%3N)
    case $time in
    *[!0-9]*) time=$(date +%s)000 ;;
    esac
}

# Sets $kills: the out-of-memory kills in this container.
count_oom_kills() {
    kills=0
    for counters in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r "$counters" ] || continue
        while read -r name value _; do
            if [ "$name" = oom_kill ]; then kills=$value; fi
        done < "$counters"
    done
}

# Sets $value to the number of an entry of a file such as cpu.stat. Fails if there is none.
entry_of() {
    [ -r "$1" ] || return 1
    while read -r name value _; do
        if [ "$name" = "$2" ]; then return 0; fi
    done < "$1"
    return 1
}

# Sets $used to the bytes that a control group uses, without pages of files that the kernel can drop.
count_memory() {
    [ -r "$1" ] || return 1
    read -r used < "$1" || return 1
    if entry_of "${1%/*}/memory.stat" "$2" && [ "$value" -lt "$used" ]; then used=$((used - value)); fi
}

# Writes what the container uses to usage.json: centiseconds of a clock, microseconds of CPU time, bytes of memory.
measure() {
    groups=/sys/fs/cgroup
    used=null cpu_us=null
    count_memory $groups/memory.current inactive_file ||
        count_memory $groups/memory/memory.usage_in_bytes total_inactive_file || used=null
    if entry_of $groups/cpu.stat usage_usec; then
        cpu_us=$value
    elif [ -r $groups/cpuacct/cpuacct.usage ] && read -r value < $groups/cpuacct/cpuacct.usage; then
        cpu_us=$((value / 1000))
    fi
    clock
    printf '{"clock_cs": %s, "cpu_us": %s, "memory": %s}' "$now" "$cpu_us" "$used" 2> /dev/null > "$run/usage.json"
}

# Sets $cause and $grace_ms from stop.json. Fails if there is none, or none that can be read.
read_stop() {
    [ -e "$control/stop.json" ] || return 1
    IFS= read -r mark < "$control/stop.json" || [ -n "$mark" ] || return 1
    cause=${mark#*\"cause\":}
    cause=${cause#*\"}
    cause=${cause%%\"*}
    grace_ms=${mark#*\"grace_ms\":}
    grace_ms=${grace_ms# }
    grace_ms=${grace_ms%%[!0-9]*}
    case $cause in
    halt | kill | peer | deadline) ;;
    *) return 1 ;;
    esac
    case $grace_ms in
    '' | ?????????*) return 1 ;;
    esac
}

# Whether the kubelet has sent SIGTERM to the container.
pod_is_ending() {
    [ -e "$run/ending" ]
}

# --- recording ------------------------------------------------------------------------------------------------------

# record CODE SIGNAL CAUSE OOM: writes exit.json into the space reserved for it, and the termination message.
record() {
    document="{\"schema\": 1, \"time\": $ended, \"code\": $1, \"signal\": $2, \"stop_cause\": \"$3\", \"lost\": false, \
\"oom\": $4, \"run\": 1}"
    (printf '%s\n' "$document" > "$message") 2> /dev/null
    for left in "$run/exit.reserved" "$run/exit.json"; do # The command could have put links and folders there.
        if [ -L "$left" ] || [ -d "$left" ]; then rm -rf "$left"; fi
    done
    until (printf '%s' "$document" 1<> "$run/exit.reserved" && mv -f "$run/exit.reserved" "$run/exit.json"); do
        clock
        [ "$now" -lt $((began_storing + store_timeout_s * 100)) ] || return
        sleep 1
    done
}

# Waits until the helper has stored all, and ends with the command's shell code.
finish() {
    while [ ! -e "$control/stored" ]; do
        clock
        [ "$now" -lt $((began_storing + store_timeout_s * 100)) ] || break
        sleep 0.1
    done
    exit "$1"
}

# --- the watcher, beside the command: copies its output and stops it ------------------------------------------------

# copy NAME SIZE COPIED: prints what the file has after COPIED bytes. Sets $copied.
copy() {
    copied=$3
    [ "$2" -gt "$copied" ] || return
    if [ $(($2 - copied)) -gt "$COPIED_MOST" ]; then
        printf '\n[weft: %s bytes are left out here; the log of the job has them]\n' $(($2 - copied - COPIED_MOST))
        copied=$(($2 - COPIED_MOST))
    fi
    tail -c +$((copied + 1)) "$run/$1" | head -c $(($2 - copied))
    copied=$2
}

# Whether the command may have written since `copied` was. In a container that writes nothing, no program is started.
has_output() {
    [ ! "$run/copied" -nt "$run/stdout" ] || [ ! "$run/copied" -nt "$run/stderr" ]
}

copy_output() {
    true 2> /dev/null > "$run/copied" # before the sizes are read: what is written after that is seen at the next turn
    # shellcheck disable=SC2046 # Two lines of a number and a name.
    set -- $(wc -c "$run/stdout" "$run/stderr")
    [ $# -ge 4 ] || return
    copy stdout "$1" "$copied_out"
    copied_out=$copied
    copy stderr "$3" "$copied_err" >&2
    copied_err=$copied
}

# stop_within GRACE_MS CAUSE: SIGTERM, if it is the first stop; SIGKILL after the grace.
stop_within() {
    clock
    end=$((now + $1 / 10))
    is_first=''
    [ "$deadline" != "$NEVER" ] || is_first=1
    if [ -n "$is_first" ] || [ "$end" -lt "$deadline" ]; then deadline=$end; fi
    # Before the signal: the command may be gone at once.
    if kill -0 "$pid" 2> /dev/null; then printf '%s %s\n' "$deadline" "$2" > "$run/stopped"; fi
    if [ -n "$is_first" ] && [ "$1" -gt 0 ]; then
        (set -C && : > "$job/stop-requested") 2> /dev/null
        is_to_end=1
    fi
}

# Ends the watcher's pause when the helper writes to its pipe: a hint. Without it, files are read every two seconds.
listen() {
    [ -p "$control/wake" ] || return
    # A failing `exec` ends it, so that a pipe that cannot be opened wakes nobody.
    (exec < "$control/wake"; read -r _; kill -s USR2 "$own") 2> /dev/null &
    listener=$!
}

watch() {
    trap 'is_over=1' USR1  # the command has ended
    trap 'is_woken=1' USR2 # there may be a stop
    read -r own _ < /proc/self/stat
    is_ending='' is_over='' is_to_end='' last_mark='' deadline=$NEVER copied_out=0 copied_err=0 copy_at=0 measure_at=0
    is_woken=1 listener=''
    kill -0 "$pid" 2> /dev/null || is_over=1 # it has ended before the trap was set
    while [ -z "$is_over" ]; do
        if [ -n "$is_woken" ]; then
            is_woken=''
            listen
        fi
        if read_stop && [ "$mark" != "$last_mark" ]; then
            last_mark=$mark
            stop_within "$grace_ms" "$cause"
        fi
        if [ -z "$is_ending" ] && pod_is_ending; then
            is_ending=1
            stop_within $((grace_s * 1000)) ''
        fi
        # A command that has just been started has no group yet: its SIGTERM is sent at a later turn.
        if [ -n "$is_to_end" ] && kill -TERM "$group" 2> /dev/null; then is_to_end=''; fi
        clock
        if [ "$deadline" != "$NEVER" ] && [ "$now" -ge "$deadline" ]; then kill -KILL "$group" 2> /dev/null; fi
        if [ "$now" -ge "$copy_at" ] && has_output; then
            copy_output
            copy_at=$((now + COPIED_EACH))
        fi
        if [ "$now" -ge "$measure_at" ]; then
            measure
            measure_at=$((now + MEASURED_EACH))
        fi
        pause=2
        [ "$deadline" = "$NEVER" ] || pause=0.1
        [ -z "$is_over$is_woken" ] || continue
        sleep "$pause" &
        pausing=$!
        wait $pausing
        [ -z "$is_woken" ] || kill "$pausing" 2> /dev/null
    done
    [ -z "$listener" ] || kill "$listener" 2> /dev/null
    copy_output
}

# --- the life of a learner ------------------------------------------------------------------------------------------

if ! mkdir -p "$run"; then exit 70; fi
if [ -e "$run/start.json" ] || [ -e "$run/exit.json" ]; then
    echo "weft: this learner was started before" >&2
    exit 75
fi
printf '%1024s' '' > "$run/exit.reserved"
: > "$run/ending.reserved"
watcher=''
# A file, as no moment may be missed. The signal ends the pause of the watcher.
trap 'mv -f "$run/ending.reserved" "$run/ending" 2> /dev/null; [ -z "$watcher" ] || kill -s USR2 "$watcher" 2> /dev/null' TERM
while ! read_stop && [ ! -e "$control/go" ] && ! pod_is_ending; do
    sleep 0.1
done
is_ending=''
if pod_is_ending; then is_ending=1; fi
if read_stop || [ -n "$is_ending" ]; then
    [ -z "$is_ending" ] || cause='' grace_ms=1
    signal=15
    [ "$grace_ms" -gt 0 ] || signal=9
    clock
    began_storing=$now
    stamp
    ended=$time
    record null $signal "$cause" false
    finish $((128 + signal))
fi

count_oom_kills
kills_before=$kills
: >> "$run/stdout"
: >> "$run/stderr"
stamp
read -r boot_id < /proc/sys/kernel/random/boot_id
read -r status < "/proc/$$/stat"
# shellcheck disable=SC2086 # Fields of numbers: the 20th after the name in brackets is the start time.
set -- ${status##*) }
printf '{"schema": 1, "pid": %s, "start_time": %s, "boot_id": "%s", "time": %s, "run": 1}\n' \
    $$ "${20}" "$boot_id" "$time" > "$run/start.tmp"
mv "$run/start.tmp" "$run/start.json"

own_session=''
if command -v setsid > /dev/null; then own_session=setsid; fi
(
    cd "${MODEL_DIR:-$job}" || exit 126
    exec $own_session /bin/sh -c "$command"
) < /dev/null >> "$run/stdout" 2>> "$run/stderr" &
pid=$!
group=$pid
[ -z "$own_session" ] || group=-$pid
trap '' USR1 USR2 # Before its traps are set, a signal would kill the watcher, and the output would not be copied.
watch &
watcher=$!
wait "$pid"
code=$?
while [ "$code" -eq 143 ] && kill -0 "$pid" 2> /dev/null; do # the trap has interrupted it
    wait "$pid"
    code=$?
done
stamp
ended=$time

cause=''
if [ -e "$run/stopped" ]; then
    read -r deadline cause < "$run/stopped"
    # The command could have written it.
    case $deadline in
    '' | *[!0-9]* | ????????????*) deadline=0 ;;
    esac
    case $cause in
    halt | kill | peer | deadline) ;;
    *) cause='' ;;
    esac
    # A shell may die of SIGTERM at once while a program below it saves its checkpoint, which has its grace.
    clock
    while kill -0 "$group" 2> /dev/null && [ "$now" -lt $((deadline + STUCK)) ]; do
        sleep 0.1
        clock
    done
fi
kill -KILL "$group" 2> /dev/null
kill -s USR1 "$watcher"
wait "$watcher"
# In a container this is all that is left, also of other sessions. Never anywhere else: it would be every process.
if [ $$ -eq 1 ]; then kill -KILL -1 2> /dev/null; fi
count_oom_kills
clock
began_storing=$now
oom=false
if [ "$code" -ne 0 ] && [ -z "$cause" ] && [ "$kills" -gt "$kills_before" ]; then oom=true; fi
# A shell reports an end by signal n as 128 + n.
if [ "$code" -gt 128 ] && [ "$code" -le 192 ]; then
    record null $((code - 128)) "$cause" $oom
else
    record "$code" null "$cause" $oom
fi
finish "$code"
