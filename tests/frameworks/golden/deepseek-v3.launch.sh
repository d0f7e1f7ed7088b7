#!/usr/bin/env bash
# deepseek-v3, 256 devices of gb200-nvl72: for Megatron-LM core_v0.16.1.
# Priced: 4.467 s per step, 469,458 tokens/s.
# Processes: 4 on node 0..15, 18..33, 36..51, 54..69.
# Of nvlink 0..3: 64 of 72 devices; the others stay idle.
#
# Set in the environment:
#   DATA_PATH: data, as --data-path takes them
#   TOKENIZER: folder or name of a Hugging Face tokenizer
#   CHECKPOINT: folder that checkpoints are read from and saved to
#   LR: learning rate
#   TRAIN_ITERS: steps
#   NODE: number of this node, 0 to 69, in the order of the cluster
#   MASTER_ADDR: address of node 0
# In no plan, and as the program or its files have it unless you set it:
#   model: --norm-epsilon (1e-5), --init-method-std (0.02)
#   positions: --rotary-base (10000), --rotary-percent, --use-rope-scaling with --rope-scaling-factor
#   scores of the router: --moe-router-score-function (softmax), --moe-router-pre-softmax, --moe-router-topk-scaling-factor
#   balance of experts: --moe-router-load-balancing-type (aux_loss), --moe-aux-loss-coeff (0),
#     --moe-router-enable-expert-bias, --moe-router-bias-update-rate
#   multi-token prediction: --mtp-loss-scaling-factor (0.1)
#   training: --lr-decay-style, --lr-warmup-iters, --min-lr, --weight-decay, --clip-grad, --adam-beta2, --split, --eval-iters, --seed
# Arguments of this script go to the program, behind all others.
set -euo pipefail

NODE=${NODE:-${SLURM_NODEID:-}}
MASTER_PORT=${MASTER_PORT:-29500}
MEGATRON=${MEGATRON:-.}  # folder of Megatron-LM
if [ -n "${MOCK_DATA:-}" ]; then  # made-up tokens, nothing saved: to time a step
  DATA_PATH=mock TOKENIZER=mock CHECKPOINT=mock
  LR=${LR:-1e-4} TRAIN_ITERS=${TRAIN_ITERS:-20}
  DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size 129279 --eval-iters 0)
else
  DATA=(--data-path "${DATA_PATH:-}" --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model "${TOKENIZER:-}" --vocab-size 129280
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


MODEL=(
  --num-layers 61
  --hidden-size 7168
  --num-attention-heads 128
  --ffn-hidden-size 18432
  --seq-length 4096
  --max-position-embeddings 4096
  --position-embedding-type rope
  --normalization RMSNorm
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --mtp-num-layers 1
  --qk-layernorm
  --multi-latent-attention
  --kv-lora-rank 512
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --v-head-dim 128
  --q-lora-rank 1536
  --num-experts 256
  --moe-router-topk 8
  --moe-ffn-hidden-size 2048
  --moe-layer-freq '([0]*3+[1]*58)'
  --moe-grouped-gemm
  --moe-shared-expert-intermediate-size 2048
  --moe-router-num-groups 8
  --moe-router-group-topk 4
)

PARALLEL=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 8
  --expert-model-parallel-size 16
  --expert-tensor-parallel-size 1
  --moe-token-dispatcher-type alltoall
  --pipeline-model-parallel-layout 'Et*7|(t*8|)*6t*6mL'
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
)

MEMORY=(
  --recompute-granularity selective
  --recompute-modules layernorm moe_act
)

TRAINING=(
  --micro-batch-size 1
  --global-batch-size 512
  --log-throughput
  --bf16
  --optimizer adam
  --use-precision-aware-optimizer
)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rank=$(grep -v '^#' "$here/hosts" | grep -nx -- "$NODE" | cut -d: -f1) || true
if [ -z "$rank" ]; then
  echo "$0: no node $NODE in this plan" >&2
  exit 2
fi
torchrun --nnodes 64 --nproc-per-node 4 \
  --node-rank "$((rank - 1))" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON/pretrain_gpt.py" "${MODEL[@]}" "${PARALLEL[@]}" "${MEMORY[@]}" "${TRAINING[@]}" "${DATA[@]}" "$@"
