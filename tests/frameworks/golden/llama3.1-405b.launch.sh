#!/usr/bin/env bash
# llama3.1-405b, 512 devices of dgx-h100: for Megatron-LM core_v0.16.1.
# Priced: 13.49 s per step, 77,722 tokens/s.
# Processes: 8 on node 0..63.
#
# Set in the environment:
#   DATA_PATH: data, as --data-path takes them
#   TOKENIZER: folder or name of a Hugging Face tokenizer
#   CHECKPOINT: folder that checkpoints are read from and saved to
#   LR: learning rate
#   TRAIN_ITERS: steps
#   NODE: number of this node, 0 to 63, in the order of the cluster
#   MASTER_ADDR: address of node 0
# In no plan, and as the program or its files have it unless you set it:
#   model: --norm-epsilon (1e-5), --init-method-std (0.02)
#   positions: --rotary-base (10000), --rotary-percent, --use-rope-scaling with --rope-scaling-factor
#   training: --lr-decay-style, --lr-warmup-iters, --min-lr, --weight-decay, --clip-grad, --adam-beta2, --split, --eval-iters, --seed
# Arguments of this script go to the program, behind all others.
set -euo pipefail

NODE=${NODE:-${SLURM_NODEID:-}}
MASTER_PORT=${MASTER_PORT:-29500}
MEGATRON=${MEGATRON:-.}  # folder of Megatron-LM
if [ -n "${MOCK_DATA:-}" ]; then  # made-up tokens, nothing saved: to time a step
  DATA_PATH=mock TOKENIZER=mock CHECKPOINT=mock
  LR=${LR:-1e-4} TRAIN_ITERS=${TRAIN_ITERS:-20}
  DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size 128255 --eval-iters 0)
else
  DATA=(--data-path "${DATA_PATH:-}" --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model "${TOKENIZER:-}" --vocab-size 128256
    --save "${CHECKPOINT:-}" --load "${CHECKPOINT:-}"
    --save-interval "${SAVE_INTERVAL:-500}")
fi
DATA+=(--lr "${LR:-}" --train-iters "${TRAIN_ITERS:-}")
missing=
for name in DATA_PATH TOKENIZER CHECKPOINT LR TRAIN_ITERS NODE MASTER_ADDR; do
  [ -n "${!name:-}" ] || missing+=" $name"
done
if [ -n "$missing" ]; then
  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2
  exit 2
fi

export CUDA_DEVICE_MAX_CONNECTIONS=1

MODEL=(
  --num-layers 126
  --hidden-size 16384
  --num-attention-heads 128
  --ffn-hidden-size 53248
  --seq-length 8192
  --max-position-embeddings 8192
  --position-embedding-type rope
  --normalization RMSNorm
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --group-query-attention
  --num-query-groups 8
)

PARALLEL=(
  --tensor-model-parallel-size 8
  --sequence-parallel
  --tp-comm-overlap
  --pipeline-model-parallel-size 8
  --pipeline-model-parallel-layout 'Et*3|(t*4|)*30t*3L'
  --use-tp-pp-dp-mapping
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
)

MEMORY=(
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
)

TRAINING=(
  --micro-batch-size 1
  --global-batch-size 128
  --log-throughput
  --bf16
  --optimizer adam
  --use-precision-aware-optimizer
)

torchrun --nnodes 64 --nproc-per-node 8 \
  --node-rank "$NODE" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON/pretrain_gpt.py" "${MODEL[@]}" "${PARALLEL[@]}" "${MEMORY[@]}" "${TRAINING[@]}" "${DATA[@]}" "$@"
