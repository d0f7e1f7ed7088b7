#!/usr/bin/env bash
# llama3-70b, 128 devices of dgx-h100: for DeepSpeed 0.19.8, Megatron-DeepSpeed 4efb479.
# Priced: 32.27 s per step, 32,491 tokens/s.
# Processes: 8 on node 0..15.
#
# Set in the environment:
#   DATA_PATH: data, as --data-path takes them
#   TOKENIZER: folder or name of a Hugging Face tokenizer
#   CHECKPOINT: folder that checkpoints are read from and saved to
#   LR: learning rate
#   TRAIN_ITERS: steps
# In no plan, and as the program or its files have it unless you set it:
#   positions, initial values, schedule of the learning rate, weight decay, evaluation: arguments of megatron/arguments.py
# Arguments of this script go to the program, behind all others.
set -euo pipefail

MASTER_ADDR=${MASTER_ADDR:-}
MASTER_PORT=${MASTER_PORT:-29500}
MEGATRON_DEEPSPEED=${MEGATRON_DEEPSPEED:-.}  # its folder
DATA=(--data-path "${DATA_PATH:-}" --tokenizer-type HFTokenizer
  --tokenizer-model "${TOKENIZER:-}" --save "${CHECKPOINT:-}" --load "${CHECKPOINT:-}"
  --save-interval "${SAVE_INTERVAL:-500}" --lr "${LR:-}" --train-iters "${TRAIN_ITERS:-}")
missing=
for name in DATA_PATH TOKENIZER CHECKPOINT LR TRAIN_ITERS; do
  [ -n "${!name:-}" ] || missing+=" $name"
done
if [ -n "$missing" ]; then
  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2
  exit 2
fi


MODEL=(
  --num-layers 80
  --hidden-size 8192
  --num-attention-heads 64
  --num-key-value-heads 8
  --ffn-hidden-size 28672
  --seq-length 4096
  --max-position-embeddings 4096
  --use-rotary-position-embeddings
  --normalization rmsnorm
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0
  --hidden-dropout 0
)

PARALLEL=(
  --tensor-model-parallel-size 8
  --pipeline-model-parallel-size 4
)

TRAINING=(
  --micro-batch-size 1
  --global-batch-size 256
  --bf16
  --zero-stage 1
  --recompute-granularity full
  --recompute-method uniform
  --optimizer adam
)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t hosts < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-}")
mapfile -t nodes < <(grep -v '^#' "$here/slurm.nodes" | sort -nu)
if [ "${#hosts[@]}" != 16 ]; then
  echo "$0: ${#hosts[@]} nodes are allocated (SLURM_JOB_NODELIST); the plan is for 16: sbatch --nodes=16" >&2
  exit 2
fi
for n in "${!nodes[@]}"; do node=${nodes[n]}; host[node]=${hosts[n]}; done
MASTER_ADDR=${MASTER_ADDR:-${host[0]}}
tasks=$(mktemp)
trap 'rm -f "$tasks"' EXIT
grep -v '^#' "$here/slurm.nodes" | while read -r node; do
  echo "${host[node]}"
done > "$tasks"
process='set -eu
export RANK=$SLURM_PROCID
export LOCAL_RANK=$((RANK % 8)) WORLD_SIZE=128
exec python "$@"'
export MASTER_ADDR MASTER_PORT
SLURM_HOSTFILE=$tasks srun --distribution=arbitrary \
  --nodes=16 --ntasks=128 bash -c "$process" "$here" \
  "$MEGATRON_DEEPSPEED/pretrain_gpt.py" --deepspeed --deepspeed_config "$here/ds_config.json" "${MODEL[@]}" "${PARALLEL[@]}" "${TRAINING[@]}" "${DATA[@]}" "$@"
