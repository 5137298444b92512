#!/bin/bash
# Starts two processes on this machine, or PROCESSES on the hosts in HOSTFILE, with Open MPI, MPICH or Intel MPI.
#   scripts/cluster/mpirun.sh
#   scripts/cluster/mpirun.sh HOSTFILE PROCESSES
# FLAGS: extra mpirun flags, such as "--bind-to none" or, for root in Open MPI, "--allow-run-as-root".
# MPIRUN: the command to use instead of mpirun, such as mpirun.mpich.
set -euo pipefail
read -ra flags <<<"${FLAGS:-}"
mpirun=${MPIRUN:-mpirun}
config=(build/bin/mnist-train --config configs/mnist.json --output runs/mpirun --resume auto)
if (($# == 0)); then exec "$mpirun" -n 2 "${flags[@]}" "${config[@]}"; fi
# mpirun does not tell the ranks rank 0's address; use the first host in the file ("node1 slots=4", "node1:4", "node1").
host=$(sed -n '/^[[:space:]]*\(#\|$\)/!{s/^[[:space:]]*//; s/[[:space:]:].*//; p; q}' "$1")
export MASTER_ADDR=${host:?the host file lists no hosts} MASTER_PORT=29500
case $("$mpirun" --version 2>&1) in
  *HYDRA* | *"Intel(R) MPI"*) ;; # these pass on the whole environment
  *) flags+=(-x "MASTER_ADDR=$MASTER_ADDR" -x "MASTER_PORT=$MASTER_PORT") ;;
esac
exec "$mpirun" --hostfile "$1" -n "${2:?PROCESSES is required}" "${flags[@]}" "${config[@]}"
