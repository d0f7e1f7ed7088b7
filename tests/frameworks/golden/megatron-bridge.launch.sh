#!/usr/bin/env bash
# llama3.1-405b, 512 devices of dgx-h100: for Megatron-Bridge 0.6.0.
# Priced: 13.25 s per step, 79,149 tokens/s.
# Processes: 8 on node 0..63.
#
# Set in the environment:
#   NODE: number of this node, 0 to 63, in the order of the cluster
#   MASTER_ADDR: address of node 0
# In no plan, and as the program or its files have it unless you set it:
#   data: dataset.blend (most recipes: none, made-up tokens), tokenizer.tokenizer_model
#   steps, learning rate: train.train_iters, optimizer.lr, optimizer.min_lr, scheduler.lr_warmup_iters
#   checkpoints: checkpoint.save, checkpoint.load
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

export CUDA_DEVICE_MAX_CONNECTIONS=1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
torchrun --nnodes 64 --nproc-per-node 8 \
  --node-rank "$NODE" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$here/plan_recipe.py" "$@"
