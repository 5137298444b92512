#!/bin/bash
# Open MPI, MPICH or Intel MPI: two processes on this machine, or on the hosts of a host file.
#   scripts/cluster/mpirun.sh
#   scripts/cluster/mpirun.sh HOSTFILE PROCESSES
# FLAGS: more flags of mpirun, such as "--bind-to none" or, for root in Open MPI, "--allow-run-as-root". MPIRUN: another command, such
# as mpirun.mpich.
set -euo pipefail
read -ra flags <<<"${FLAGS:-}"
mpirun=${MPIRUN:-mpirun}
config=(build/bin/mnist-train --config configs/mnist.json --output runs/mpirun --resume auto)
if (($# == 0)); then exec "$mpirun" -n 2 "${flags[@]}" "${config[@]}"; fi
# MPI does not pass on rank 0's address. It is the first host of the file ("node1 slots=4", "node1:4", "node1").
host=$(sed -n '/^[[:space:]]*\(#\|$\)/!{s/^[[:space:]]*//; s/[[:space:]:].*//; p; q}' "$1")
export MASTER_ADDR=${host:?the host file names no host} MASTER_PORT=29500
case $("$mpirun" --version 2>&1) in
  *HYDRA* | *"Intel(R) MPI"*) ;; # they pass on the whole environment
  *) flags+=(-x "MASTER_ADDR=$MASTER_ADDR" -x "MASTER_PORT=$MASTER_PORT") ;;
esac
exec "$mpirun" --hostfile "$1" -n "${2:?number of processes}" "${flags[@]}" "${config[@]}"
