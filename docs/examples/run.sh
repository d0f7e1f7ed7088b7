#!/bin/bash
#SBATCH --job-name=llama-8b --nodes=4 --ntasks-per-node=1 --gpus-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
CHECKPOINT=checkpoints/llama-8b-$SLURM_JOB_ID

MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --position-embedding-type rope
    --disable-bias-linear --untie-embeddings-and-output-weights
    --seq-length 8192 --max-position-embeddings 8192
    --attention-dropout 0.0 --hidden-dropout 0.0
)
TRAINING_ARGS=(
    --bf16 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --train-iters 200000
    --micro-batch-size 1
    --global-batch-size 512
    --use-distributed-optimizer
    --recompute-activations
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size 2
    --sequence-parallel
)
DATA_ARGS=(
    --data-path "$DATA" --tokenizer-type HuggingFaceTokenizer --tokenizer-model tokenizer
    --save "$CHECKPOINT" --save-interval 1000
)
srun bash -c "torchrun --nproc-per-node 8 --nnodes 4 --node-rank \$SLURM_NODEID \
    --rdzv-backend c10d --rdzv-endpoint $HOSTNAME:29500 pretrain_gpt.py \
    ${MODEL_ARGS[*]} ${TRAINING_ARGS[*]} ${PARALLEL_ARGS[*]} ${DATA_ARGS[*]}"
