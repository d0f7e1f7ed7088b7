#!/usr/bin/env bash
# llama3-70b, 64 devices of dgx-h100: for DeepSpeed 0.19.8, Megatron-DeepSpeed 4efb479.
# Priced: 19.07 s per step, 54,986 tokens/s.
# Processes: 8 on node 0..7.
#
# Set in the environment:
#   PROGRAM: program that calls deepspeed.initialize; it gets the arguments below
# In no plan, and as the program or its files have it unless you set it:
#   optimizer and its learning rate, data, steps and checkpoints: PROGRAM
#   clipping: gradient_clipping (1.0) in ds_config.json
# Arguments of this script go to the program, behind all others.
set -euo pipefail

MASTER_ADDR=${MASTER_ADDR:-node0}
MASTER_PORT=${MASTER_PORT:-29500}
missing=
for name in PROGRAM; do
  [ -n "${!name:-}" ] || missing+=" $name"
done
if [ -n "$missing" ]; then
  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2
  exit 2
fi


PARALLEL=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 1
  --no-pipeline-parallel
  --deepspeed-activation-checkpointing
)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
deepspeed --hostfile "$here/hostfile" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
  "$PROGRAM" --deepspeed --deepspeed_config "$here/ds_config.json" "${PARALLEL[@]}" "$@"
