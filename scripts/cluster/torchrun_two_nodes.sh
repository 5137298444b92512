#!/bin/bash
# Two machines, four processes each. Run it on both, with 1 instead of 0 on the second; extra arguments go to mnist-train:
#   scripts/cluster/torchrun_two_nodes.sh 0 node1
#   scripts/cluster/torchrun_two_nodes.sh 0 node1 --resume auto
set -euo pipefail
exec scripts/launch --nnodes 2 --node-rank "${1:?0 or 1}" --master-addr "${2:?host of node 0}" --master-port 29500 \
  --nproc-per-node "${PROCESSES:-4}" --max-restarts 1 --config configs/mnist.json --output runs/two-nodes "${@:3}"
