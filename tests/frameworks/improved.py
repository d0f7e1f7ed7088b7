"""Files of jobs that have a better plan on 16 devices; words beside it must stay as they are."""

from __future__ import annotations

TOML = """# Llama 3 8B, $HOME `id` "quoted"
[job]
description = "it's \\"ours\\""   # where things go

[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1   # of a rank
seq_len = 8192
global_batch_size = 64

[parallelism]
tensor_parallel_degree = 8 # of a node
pipeline_parallel_schedule = "1F1B"

[activation_checkpoint]
mode = "full"
"""
TITAN = '''"""Our runs."""

from torchtitan.config import TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path="./it's $HOME",  # 'quoted' "twice"
        model_spec=model_registry("8B"),
        training=TrainingConfig(
            local_batch_size=1,  # of a rank
            seq_len=8192,
            global_batch_size=64,  # äöü
        ),
        activation_checkpoint=FullAC.Config(),  # less memory
    )
'''
DEEPSPEED = """{
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 32,
    "bf16": {"enabled": true}, "tensor_parallel": {"autotp_size": 8},
    "zero_optimization": {"stage": 3, "overlap_comm": false,
        "reduce_bucket_size": 5e8
    },
\t"wandb": {"enabled": false, "project": "it's \\" $HOME"}
}
"""
MEGATRON = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 \\
    --seq-length 1024 --max-position-embeddings 1024 \\
    --micro-batch-size 1 --global-batch-size 32 --bf16 \\
    --tensor-model-parallel-size 8 --recompute-activations \\
    --mock-data --tokenizer-type NullTokenizer --vocab-size 999 --lr 1e-4 --train-iters 10
"""
