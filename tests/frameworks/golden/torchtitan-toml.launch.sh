#!/usr/bin/env bash
# qwen3-30b-a3b, 32 devices of dgx-h100: for torchtitan 0.2.2.
# Priced: 2.701 s per step, 194,097 tokens/s.
# Processes: 8 on node 0..3.
#
# Set in the environment:
#   NODE: number of this node, 0 to 3, in the order of the cluster
#   MASTER_ADDR: address of node 0
# Arguments of this script go to the program, behind all others.
set -euo pipefail

NODE=${NODE:-${SLURM_NODEID:-}}
MASTER_PORT=${MASTER_PORT:-29500}
missing=
for name in NODE MASTER_ADDR; do
  [ -n "${!name:-}" ] || missing+=" $name"
done
if [ -n "$missing" ]; then
  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2
  exit 2
fi


here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
torchrun --nnodes 4 --nproc-per-node 8 \
  --node-rank "$NODE" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m torchtitan.train --job.config_file "$here/plan.toml" "$@"
