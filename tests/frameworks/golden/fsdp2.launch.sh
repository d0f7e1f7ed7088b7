#!/usr/bin/env bash
# llama3-8b, 16 devices of dgx-h100: for PyTorch FSDP2 2.13.0.
# Priced: 3.786 s per step, 138,482 tokens/s.
# Processes: 8 on node 0..1.
#
# Set in the environment:
#   PROGRAM: training program that imports parallelize.py (mesh, parallelize)
#   NODE: number of this node, 0 to 1, in the order of the cluster
#   MASTER_ADDR: address of node 0
# In no plan, and as the program or its files have it unless you set it:
#   model, data, optimizer and its learning rate, clipping, steps, checkpoints: PROGRAM
# Arguments of this script go to the program, behind all others.
set -euo pipefail

NODE=${NODE:-${SLURM_NODEID:-}}
MASTER_PORT=${MASTER_PORT:-29500}
export PYTHONPATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}
missing=
for name in PROGRAM NODE MASTER_ADDR; do
  [ -n "${!name:-}" ] || missing+=" $name"
done
if [ -n "$missing" ]; then
  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2
  exit 2
fi


torchrun --nnodes 2 --nproc-per-node 8 \
  --node-rank "$NODE" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$PROGRAM" "$@"
