#!/usr/bin/env bash
# mixtral-8x7b, 64 devices of dgx-h100: for MaxText e591f30.
# Priced: 4.695 s per step, 111,660 tokens/s.
# Processes: 8 on node 0..7.
#
# Set in the environment:
#   RUN_NAME: name of the run
#   OUTPUT: folder that is written to (base_output_directory)
#   DATASET_TYPE: dataset_type: tfds, grain or hf, and its data as arguments (below); synthetic to time a step
#   TOKENIZER: tokenizer_path
#   STEPS: steps
#   NODE: number of this node, 0 to 7, in the order of the cluster
#   MASTER_ADDR: address of node 0
# In no plan, and as the program or its files have it unless you set it:
#   data: dataset_path, dataset_name; grain_train_files; hf_path, hf_train_files; tokenizer_type (sentencepiece)
#   learning rate: learning_rate (3e-5), warmup_steps_fraction
#   checkpoints: enable_checkpointing, checkpoint_period, load_parameters_path
#   balance of experts: load_balance_loss_weight (0)
# Arguments of this script go to the program, behind all others.
set -euo pipefail

NODE=${NODE:-${SLURM_NODEID:-}}
MASTER_PORT=${MASTER_PORT:-29500}
OWN=(run_name="${RUN_NAME:-}" base_output_directory="${OUTPUT:-}"
  dataset_type="${DATASET_TYPE:-}" tokenizer_path="${TOKENIZER:-}" steps="${STEPS:-}")
missing=
for name in RUN_NAME OUTPUT DATASET_TYPE TOKENIZER STEPS NODE MASTER_ADDR; do
  [ -n "${!name:-}" ] || missing+=" $name"
done
if [ -n "$missing" ]; then
  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2
  exit 2
fi

export NVTE_FUSED_ATTN=1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
process='set -eu
unset CUDA_VISIBLE_DEVICES
export SLURM_STEP_GPUS=$LOCAL_RANK
export JAX_COORDINATOR_IP=$MASTER_ADDR JAX_COORDINATOR_PORT=$MASTER_PORT
export NNODES=$WORLD_SIZE NODE_RANK=$RANK
exec python "$@"'
processes=()
while read -r node device rank; do
  [ "$node" = "$NODE" ] || continue
  RANK=$rank LOCAL_RANK=$device WORLD_SIZE=64 MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT \
    bash -c "$process" "$here" -m maxtext.trainers.pre_train.train "$here/plan.yml" "${OWN[@]}" "$@" </dev/null &
  processes+=($!)
done < <(grep -v '^#' "$here/ranks")
if [ "${#processes[@]}" = 0 ]; then
  echo "$0: no node $NODE in this plan" >&2
  exit 2
fi
trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT
while [ "${#processes[@]}" -gt 0 ]; do
  for n in "${!processes[@]}"; do
    kill -0 "${processes[n]}" 2>/dev/null && continue
    wait "${processes[n]}"
    unset "processes[n]"
  done
  sleep 1
done
