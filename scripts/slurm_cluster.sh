#!/usr/bin/env bash
# A private cluster for tests: one controller and two nodes of SLURM, all on this machine, without systemd and cgroups.
#
#   bash scripts/slurm_cluster.sh up FOLDER      prints the path of its slurm.conf, for SLURM_CONF
#   bash scripts/slurm_cluster.sh down FOLDER
#
# Configuration, keys, sockets, state and logs are in FOLDER; nothing under /etc is read or changed. It needs root, and on
# Debian: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
set -euo pipefail
action=$1
folder=$(readlink -m "$2")
nodes=2
host=$(hostname -s)
port=${SLURM_BASE_PORT:-17500}
export SLURM_CONF=$folder/slurm.conf

configure() {
    # A job that is put back waits until its old credential has expired: cred_expire, two minutes by default.
    cat <<END
ClusterName=lightloop
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/sock,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=60
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
END
    for number in $(seq "$nodes"); do
        echo "NodeName=n$number NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 10 + number)) CPUs=2 RealMemory=2000 State=UNKNOWN"
    done
    # A job of "urgent" takes the nodes from one of "main", which has GraceTime seconds to end by itself.
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60"
    echo "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF"
}

case $action in
up)
    mkdir -p "$folder"/{state,spool,log,munge}
    chmod 755 "$folder"
    chmod 711 "$folder/munge"
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/sock" --pid-file="$folder/munge/pid" \
        --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
    configure >"$SLURM_CONF"
    echo "CgroupAutomount=no" >"$folder/cgroup.conf"
    slurmctld -i -c >&2
    for number in $(seq "$nodes"); do
        mkdir -p "$folder/spool/n$number"
        slurmd -N "n$number" >&2
    done
    for _ in $(seq 150); do
        if [ "$(sinfo -h -p main -t idle -o %D 2>/dev/null)" = "$nodes" ]; then
            echo "$SLURM_CONF"
            exit 0
        fi
        sleep 0.2
    done
    sinfo -N -l >&2 || true
    tail -5 "$folder"/log/*.log >&2
    exit 1
    ;;
down)
    scancel --user=root 2>/dev/null || true
    sleep 1
    scancel --user=root 2>/dev/null || true  # what was put back meanwhile
    for _ in $(seq 50); do  # what a node has started ends with its job, not with the node
        [ -n "$(squeue -h 2>/dev/null)" ] || break
        sleep 0.2
    done
    for file in "$folder"/slurmd.*.pid "$folder/slurmctld.pid" "$folder/munge/pid"; do
        if [ -s "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
    done
    ;;
esac
