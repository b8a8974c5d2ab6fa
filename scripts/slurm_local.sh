#!/usr/bin/env bash
# A real Slurm on this machine alone, to try launcher=slurm with and to test it. Thrown away after.
#
#   apt-get install -y --no-install-recommends slurm-wlm munge
#   scripts/slurm_local.sh up 2                   # two nodes, as root, without systemd
#   eval "$(scripts/slurm_local.sh env)"          # now sinfo, sbatch, ... are those of this cluster
#   scripts/slurm_local.sh status
#   scripts/slurm_local.sh kill-node node1        # as if its power were cut; start-node brings it back
#   scripts/slurm_local.sh kill-ctld              # the controller alone; start-ctld brings it back
#   scripts/slurm_local.sh down
#
# Everything is below SLURM_LOCAL_DIR (/tmp/slurm-local), nothing in /etc or /run is touched: several
# clusters may run beside each other, each in a folder of its own. Each node is a namespace with its
# own processes and host name. No accounting. Partitions: main, and high, whose jobs preempt main's.
# Other settings, with their defaults:
#   SLURM_LOCAL_CPUS=4        CPUs that a node pretends to have
#   SLURM_LOCAL_GRACE=10      seconds from a preempted job's warning to its end; 0: ended without a word
#   SLURM_LOCAL_ARRAY=1001    MaxArraySize
#   SLURM_LOCAL_SILENCE=15    seconds after which a silent node is down
set -euo pipefail
umask 022
DIR=${SLURM_LOCAL_DIR:-/tmp/slurm-local}
export SLURM_CONF=$DIR/slurm.conf PATH=$PATH:/usr/sbin:/sbin

die() { echo "slurm_local: $*" >&2; exit 1; }

# A process is named by its number and its start time: a number that was given out again is not ours.
born() { local stat; stat=$(cat "/proc/$1/stat" 2>/dev/null) && cut -d' ' -f20 <<<"${stat##*) }"; }
remember() { echo "$2 $(born "$2")" >"$DIR/pids/$1"; }
alive() {
    local pid when
    read -r pid when 2>/dev/null <"$DIR/pids/$1" || return 1
    [ "$(born "$pid")" = "$when" ] && [ "$(cut -d' ' -f1 <<<"$(sed 's/.*) //' "/proc/$pid/stat")")" != Z ] && echo "$pid"
}
until_true() { local i; for i in $(seq "$(($1 * 10))"); do "${@:2}" >/dev/null 2>&1 && return; sleep 0.1; done; return 1; }
gone() { ! alive "$1"; }
end() { local pid; pid=$(alive "$1") || return 0; kill -KILL "$pid" || true; until_true 5 gone "$1"; }
start() { setsid "${@:2}" </dev/null >>"$DIR/log/$1.out" 2>&1 & remember "$1" $!; }
nodes() { seq -f 'node%g' "$(cat "$DIR/nodes")"; }
usable() { local n; n=$(sinfo -h -N -p main -t idle,mixed,allocated -o %N | sort -u | wc -l); [ "$n" = "$(cat "$DIR/nodes")" ]; }

free_ports() { # the first of $1 ports in a row that nobody listens on
    local port i
    for port in $(shuf -i 20000-31000 -n 50); do
        for i in $(seq "$port" $((port + $1 - 1))); do
            (exec 3<>"/dev/tcp/127.0.0.1/$i") 2>/dev/null && continue 2
        done
        echo "$port"; return
    done
    die "no $1 free ports in a row"
}

configure() { # $1 nodes, $2 first port
    local cpus=${SLURM_LOCAL_CPUS:-4} grace=${SLURM_LOCAL_GRACE:-10} i
    cat <<CONF
ClusterName=local
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$2
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
# A requeued job is held for cred_expire seconds: 120 by default, and no less than 5.
AuthInfo=socket=$DIR/munge/socket,cred_expire=5
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/run/slurmctld
SlurmdPidFile=$DIR/run/%n
SlurmctldLogFile=$DIR/log/slurmctld
SlurmdLogFile=$DIR/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
PlugStackConfig=/dev/null
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
$([ "$grace" = 0 ] || echo SlurmctldParameters=preempt_send_user_signal)
# An impossible job is refused, and does not wait for ever.
EnforcePartLimits=ALL
JobRequeue=1
ReturnToService=2
KillWait=5
SlurmdTimeout=${SLURM_LOCAL_SILENCE:-15}
MessageTimeout=5
MinJobAge=300
MaxArraySize=${SLURM_LOCAL_ARRAY:-1001}
DefMemPerCPU=100
# Never the numbers of an earlier cluster.
FirstJobId=$(($(date +%s) % 6000000 * 10 + 1))
PartitionName=main Nodes=ALL Default=YES MaxTime=120 DefaultTime=10 PriorityTier=1 GraceTime=$grace
PartitionName=high Nodes=ALL MaxTime=120 DefaultTime=10 PriorityTier=10 PreemptMode=OFF
CONF
    for i in $(seq "$1"); do
        echo "NodeName=node$i NodeHostname=node$i NodeAddr=127.0.0.1 Port=$(($2 + i)) CPUs=$cpus RealMemory=4000"
    done
}

start_ctld() {
    alive slurmctld >/dev/null && return
    start slurmctld slurmctld -D -f "$SLURM_CONF"
    until_true 15 scontrol ping || die "slurmctld does not answer: see $DIR/log"
}

# unshare waits for the namespace's first process, and takes the namespace with it when it is killed.
start_node() {
    alive "$1" >/dev/null && return
    mkdir -p "$DIR/spool/$1"
    # shellcheck disable=SC2016
    start "$1" unshare --fork --kill-child=KILL --pid --mount-proc --uts --mount \
        bash -c 'hostname "$0"; slurmd -N "$0" -f "$SLURM_CONF"; while :; do sleep 1000 & wait $!; done' "$1"
}

up() {
    local count=${1:-2} name
    [[ $count =~ ^[1-9][0-9]?$ ]] || die "up N: 1 to 99 nodes"
    [ ${#DIR} -le 60 ] || die "SLURM_LOCAL_DIR is too long for a socket: $DIR"
    [ ! -e "$DIR" ] || die "$DIR is there already: $0 down"
    for name in munged slurmctld slurmd; do
        command -v $name >/dev/null || die "no $name: apt-get install -y --no-install-recommends slurm-wlm munge"
    done
    unshare --fork --pid --mount-proc --uts --mount true || die "unshare is refused: run this as root"
    mkdir -p "$DIR"/{pids,run,log,spool,state} && mkdir -m 755 "$DIR/munge" && mkdir -m 700 "$DIR/munge/private"
    echo "$count" >"$DIR/nodes"
    trap 'tail -n 5 "$DIR"/log/* >&2; down' EXIT
    (umask 077; head -c 1024 /dev/urandom >"$DIR/munge/key")
    start munged munged --foreground --key-file="$DIR/munge/key" --socket="$DIR/munge/socket" \
        --pid-file="$DIR/munge/private/pid" --log-file="$DIR/munge/private/log" --seed-file="$DIR/munge/private/seed"
    configure "$count" "$(free_ports $((count + 1)))" >"$SLURM_CONF"
    until_true 5 munge -S "$DIR/munge/socket" -n || die "munged does not answer"
    start_ctld
    for name in $(nodes); do start_node "$name"; done
    until_true 20 usable || die "the nodes did not come up"
    trap - EXIT
    echo "$count nodes are up, $(nodes | paste -sd' '), ${SLURM_LOCAL_CPUS:-4} CPUs each; partitions main and high; all in $DIR"
    name=${SLURM_LOCAL_DIR:+SLURM_LOCAL_DIR=$DIR }$0
    echo "Next, in each shell that is to use them: eval \"\$($name env)\"; at the end: $name down"
}

down() {
    local name
    [ -e "$DIR" ] || return 0
    [ -d "$DIR/pids" ] || die "$DIR is none of ours"
    for name in $(nodes) slurmctld munged; do end "$name"; done
    rm -rf "$DIR"
}

status() {
    local name
    for name in munged slurmctld $(nodes); do printf '%-10s %s\n' "$name" "$(alive "$name" || echo dead)"; done
    sinfo -N -o '%N %T %C' && squeue && usable
}

case ${1:-} in up | down) ;; *) [ -e "$DIR/nodes" ] || die "not up in $DIR: $0 up N" ;; esac
case ${1:-} in *-node) nodes | grep -qx -- "${2:-}" || die "no node '${2:-}': $(nodes | paste -sd' ')" ;; esac
case ${1:-} in
    up) up "${2:-2}" ;;
    env) echo "export SLURM_CONF='$SLURM_CONF' PATH=\"\$PATH:/usr/sbin:/sbin\"" ;;
    status) status ;;
    kill-node) end "$2" ;;
    start-node) start_node "$2" ;;
    kill-ctld) end slurmctld ;;
    start-ctld) start_ctld ;;
    down) down ;;
    *) sed -n '2,/^set/p' "$0" | grep '^#' | cut -c3- >&2; exit 2 ;;
esac
