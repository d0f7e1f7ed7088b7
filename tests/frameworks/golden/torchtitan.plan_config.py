"""The configuration of a plan.

llama3-8b, 32 devices of dgx-h100: for torchtitan 0.3.0.
Priced: 2.736 s per step, 191,640 tokens/s.

In no plan, and as llama3_8b has them unless plan() or arguments of launch.sh set them:
tokenizer: config.hf_assets_path
data: config.dataloader, such as
    torchtitan.hf_datasets.text_datasets.HuggingFaceTextDataLoader.Config(dataset="c4")
steps: config.training.steps
learning rate: config.optimizer, such as
    torchtitan.components.optimizer.default_adamw(lr=3e-4); config.lr_scheduler.warmup_steps
checkpoints: config.checkpoint.enable, config.checkpoint.folder
"""

import dataclasses

from torchtitan.config import CompileConfig, ParallelismConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3.config_registry import llama3_8b, model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    config = llama3_8b()
    config.model_spec = model_registry('8B')
    if not hasattr(config.training, "local_batch_size"):
        raise ValueError("this file is for torchtitan 0.3.0; later sources want "
                         "training.num_tokens_per_microbatch_per_dp_rank 8192, "
                         "training.num_tokens_per_train_step 524288, "
                         "training.max_context_length 8192, "
                         "parallelism.num_pp_microbatches 8")
    spec = config.model_spec.model
    found = len(spec.layers), spec.dim, spec.vocab_size
    if found != (32, 4096, 128256):
        raise ValueError(f"layers, width, vocabulary {found}: the plan is for "
                         "32, 4096, 128256")
    config.training = dataclasses.replace(
        config.training,
        local_batch_size=8,
        global_batch_size=64,
        seq_len=8192,
        mixed_precision_param='bfloat16',
        disable_cuda_graphs=True,
    )
    config.parallelism = ParallelismConfig(
        data_parallel_replicate_degree=1,
        data_parallel_shard_degree=8,
        fsdp_reshard_after_forward='never',
        tensor_parallel_degree=2,
        context_parallel_degree=1,
        expert_parallel_degree=1,
        pipeline_parallel_degree=2,
        pipeline_parallel_schedule='Interleaved1F1B',
        pipeline_parallel_microbatch_size=1,
        module_fqns_per_model_part=[
            ['tok_embeddings', 'layers.0', 'layers.1', 'layers.2', 'layers.3', 'layers.4', 'layers.5', 'layers.6', 'layers.7'],
            ['layers.8', 'layers.9', 'layers.10', 'layers.11', 'layers.12', 'layers.13', 'layers.14', 'layers.15'],
            ['layers.16', 'layers.17', 'layers.18', 'layers.19', 'layers.20', 'layers.21', 'layers.22', 'layers.23'],
            ['layers.24', 'layers.25', 'layers.26', 'layers.27', 'layers.28', 'layers.29', 'layers.30', 'layers.31', 'norm', 'lm_head'],
        ],
        enable_sequence_parallel=True,
    )
    config.activation_checkpoint = FullAC.Config()
    config.compile = CompileConfig(enable=True)
    return config
