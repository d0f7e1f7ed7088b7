"""A recipe changed to a plan: run by each rank; arguments are overrides of fields.

llama3.1-405b, 512 devices of dgx-h100: for Megatron-Bridge 0.6.0.
Priced: 13.25 s per step, 79,149 tokens/s.
"""

import sys

from megatron.bridge.recipes.llama.h100.llama3 import llama31_405b_pretrain_256gpu_h100_bf16_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import bf16_mixed
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def plan():
    config = llama31_405b_pretrain_256gpu_h100_bf16_config()
    found = config.model.num_layers, config.model.hidden_size
    if found != (126, 16384):
        raise ValueError(f"layers, width {found}: the plan is for "
                         "126, 16384")
    config.model.num_layers_in_first_pipeline_stage = None
    config.model.num_layers_in_last_pipeline_stage = None
    config.model.account_for_embedding_in_pipeline_split = False
    config.model.account_for_loss_in_pipeline_split = False
    config.model.tensor_model_parallel_size = 8
    config.model.sequence_parallel = True
    config.model.pipeline_model_parallel_size = 8
    config.model.virtual_pipeline_model_parallel_size = 4
    config.model.pipeline_model_parallel_layout = 'Et*3|(t*4|)*30t*3L'
    config.model.microbatch_group_size_per_vp_stage = None
    config.model.context_parallel_size = 1
    config.model.hierarchical_context_parallel_sizes = None
    config.model.expert_model_parallel_size = 1
    config.model.recompute_granularity = 'full'
    config.model.recompute_method = 'uniform'
    config.model.recompute_num_layers = 1
    config.model.recompute_modules = None
    config.model.cpu_offloading = False
    config.model.fine_grained_activation_offloading = False
    config.model.offload_modules = None
    config.optimizer.use_distributed_optimizer = True
    config.optimizer.use_precision_aware_optimizer = False
    config.optimizer.optimizer_cpu_offload = False
    config.ddp.use_distributed_optimizer = True
    config.ddp.num_distributed_optimizer_instances = 1
    config.ddp.use_megatron_fsdp = False
    config.checkpoint.ckpt_format = 'torch_dist'
    config.dist.use_tp_pp_dp_mapping = True
    config.train.global_batch_size = 128
    config.train.micro_batch_size = 1
    config.dataset.seq_length = 8192
    config.model.seq_length = 8192
    config.model.cuda_graph_impl = 'none'
    config.model.cuda_graph_scope = []
    config.mixed_precision = bf16_mixed()
    config.mixed_precision.grad_reduce_in_fp32 = False
    config.comm_overlap = CommOverlapConfig(
        tp_comm_overlap=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        overlap_moe_expert_parallel_comm=False,
    )
    return config


if __name__ == "__main__":
    pretrain(config=process_config_with_overrides(plan(), cli_overrides=sys.argv[1:]),
             forward_step_func=forward_step)
