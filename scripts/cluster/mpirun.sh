#!/bin/bash
# Open MPI: two processes on this machine, or on the hosts of a host file.
#   scripts/cluster/mpirun.sh
#   scripts/cluster/mpirun.sh HOSTFILE PROCESSES
# FLAGS holds further ones of mpirun, such as "--bind-to none" or, for root, "--allow-run-as-root".
set -euo pipefail
read -ra flags <<<"${FLAGS:-}"
config=(build/bin/mnist-train --config configs/mnist.json --output runs/mpirun --resume auto)
if (($# == 0)); then exec mpirun -n 2 "${flags[@]}" "${config[@]}"; fi
# Open MPI does not tell its processes where rank 0 is: on the first host of the file ("node1 slots=4", "node1:4", "node1").
host=$(sed -n '/^[[:space:]]*\(#\|$\)/!{s/^[[:space:]]*//; s/[[:space:]:].*//; p; q}' "$1")
exec mpirun --hostfile "$1" -n "${2:?number of processes}" "${flags[@]}" \
  -x MASTER_ADDR="${host:?the host file names no host}" -x MASTER_PORT=29500 "${config[@]}"
