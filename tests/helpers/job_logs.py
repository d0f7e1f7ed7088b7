"""Thirteen logs of jobs, in the formats of their software, short; figures are made up.

Formats: the sources that :mod:`nest.measured.logs.printed` and `formats.yaml` cite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def table(values: Mapping[str, Any], title: str = "arguments") -> str:
    """Megatron-LM's table of arguments."""
    rows = (f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(values.items()))
    return "\n".join([f"------------------------ {title} ------------------------", *rows,
                      f"-------------------- end of {title} ---------------------"])


LLAMA: dict[str, Any] = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
    "group_query_attention": True, "num_query_groups": 8, "kv_channels": 128, "swiglu": True,
    "add_bias_linear": False, "normalization": "RMSNorm", "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True, "seq_length": 4096, "attention_dropout": 0.0,
    "hidden_dropout": 0.0, "max_position_embeddings": 4096}
RUN: dict[str, Any] = {
    "world_size": 16, "rank": 0, "data_parallel_size": 4, "params_dtype": "torch.bfloat16",
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True,
    "context_parallel_size": 1, "micro_batch_size": 1, "global_batch_size": 64, "bf16": True,
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    "optimizer": "adam", "lr": 0.0003, "train_iters": 100, "recompute_granularity": "selective",
    "recompute_modules": ["core_attn"], "attention_backend": "AttnBackend.auto",
    "num_layers_per_virtual_pipeline_stage": 4, "virtual_pipeline_model_parallel_size": 4,
    "transformer_impl": "transformer_engine", "img_h": 224, "mask_type": "random",
    "num_distributed_optimizer_instances": 1, "moe_router_topk": 2, "kv_lora_rank": 32,
    "data_parallel_sharding_strategy": "no_shard", "cp_comm_type": ["p2p"], "sgd_momentum": 0.9,
    "fp8_recipe": "delayed", "rerun_mode": "validate_results", "moe_layer_freq": 1,
    "bias_swiglu_fusion": True, "num_experts": None, "perform_initialization": True,
    "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "=HYPERLINK(1)"}


def iteration(number: int, ms: float, more: str = "") -> str:
    return (f" [2026-03-01 10:00:{number:02d}] iteration {number:8d}/     100 | consumed samples: "
            f"{64 * number:12d} | elapsed time per iteration (ms): {ms:.1f} |{more} learning rate: "
            "3.000000E-04 | global batch size:    64 | lm loss: 1.0E+01 | loss scale: 1.0 |")


MEMORY = ("[Rank {0}] (after 2 iterations) memory (MB) | allocated: 20000.00 | max allocated: {1} "
          "| reserved: 30000.00 | max reserved: {2}")


def megatron() -> str:
    steps = [9000.0, 2010.0, 2000.0, 2020.0, 2000.0, 2030.0, 2000.0, 4100.0, 2010.0, 2000.0]
    return "\n".join([
        "using world size: 16, data-parallel size: 4", table({**LLAMA, **RUN}),
        " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)",
        *(iteration(n, ms, " throughput per GPU (TFLOP/s/GPU): 410.5 |")
          for n, ms in enumerate(steps[:2], 1)),
        MEMORY.format(0, "41000.50", "46000.00"), MEMORY.format(4, "39000.00", "47000.00"),
        *(iteration(n, ms, " throughput per GPU (TFLOP/s/GPU): 410.5 |")
          for n, ms in enumerate(steps[2:], 3))]) + "\n"


def megatron_2021() -> str:
    """Without rows of fused attention, and with names of that time."""
    given = {
        "num_layers": 24, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16,
        "seq_length": 2048, "max_position_embeddings": 2048, "world_size": 8, "fp16": True,
        "micro_batch_size": 2, "global_batch_size": 64, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 1, "activations_checkpoint_method": "uniform",
        "activations_checkpoint_num_layers": 1, "DDP_impl": "local", "optimizer": "adam",
        "img_dim": 224, "hidden_dropout": 0.1, "bias_gelu_fusion": True,
        "padded_vocab_size": 50304, "masked_softmax_fusion": True, "data_impl": "mmap"}
    lines = [iteration(n, ms) for n, ms in enumerate((3000.0, 1500.0, 1510.0, 1490.0), 1)]
    return "\n".join([table(given), *lines]) + "\n"


def json_of_engine(stage: int, micro: int, steps: int, batch: int) -> str:
    settings = {
        "train_batch_size": batch, "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps, "bf16": {"enabled": True}, "steps_per_print": "inf",
        "gradient_clipping": 1.0, "zero_optimization": {"stage": stage, "overlap_comm": True}}
    body = json.dumps(settings, indent=4, separators=(",", ":")).replace('"inf"', "inf")
    stamp = "[2026-03-01 10:00:00,000] [INFO] "
    return "\n".join([
        f"{stamp}[logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.15.4, git-hash=x",
        f"{stamp}[config.py:999:print] DeepSpeedEngine configuration:",
        f"{stamp}[config.py:1003:print]   train_batch_size ............. {batch}",
        f"{stamp}[config.py:1003:print]   train_micro_batch_size_per_gpu  {micro}",
        f"{stamp}[config.py:1003:print]   world_size ................... {batch // micro // steps}",
        f"{stamp}[config.py:989:print_user_config]   json = {body}"])


def megatron_deepspeed() -> str:
    given = {
        "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048,
        "ffn_hidden_size": 8192, "max_position_embeddings": 2048, "world_size": 8, "bf16": True,
        "micro_batch_size": 2, "global_batch_size": 64, "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 1, "no_pipeline_parallel": True, "zero_stage": 1,
        "deepspeed": True, "deepspeed_config": "ds.json", "num_experts": [1], "vocab_size": None,
        "deepspeed_activation_checkpointing": True, "use_flash_attn_v2": True,
        "tokenizer_type": "GPT2BPETokenizer", "vocab_file": "words.json"}
    lines = [f"[default7]: iteration {n:8d}/     100 | consumed samples: {n} | elapsed time per "
             f"iteration (ms): {ms} | samples per second: 40.000 | TFLOPs: 99.50 |"
             for n, ms in enumerate((3000.0, 1600.0, 1610.0, 1600.0), 1)]
    return "\n".join([table(given), json_of_engine(1, 2, 8, 64),
                      " > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)",
                      *lines]) + "\n"


BRIDGE_YAML = """\
------- Task Configuration -------
data_parallel_size: 8
checkpoint:
  save: /tmp/checkpoints
dataset:
  sequence_length: 8192
ddp:
  grad_reduce_in_fp32: true
  overlap_grad_reduce: true
  overlap_param_gather: true
  use_distributed_optimizer: true
mixed_precision: bf16_mixed
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider70B
  add_bias_linear: false
  attention_dropout: 0.0
  bf16: true
  ffn_hidden_size: 28672
  gated_linear_unit: true
  hidden_dropout: 0.0
  hidden_size: 8192
  normalization: RMSNorm
  num_attention_heads: 64
  num_layers: 80
  num_moe_experts: null
  num_query_groups: 8
  pipeline_model_parallel_size: 4
  position_embedding_type: rope
  sequence_parallel: true
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 4
  tp_comm_overlap: true
  vocab_size: 128256
  virtual_pipeline_model_parallel_size: 5
optimizer:
  optimizer: adam
  use_distributed_optimizer: true
  use_precision_aware_optimizer: true
train:
  global_batch_size: 128
  micro_batch_size: 1
----------------------------------
"""


def bridge_steps() -> str:
    lines = []
    for n, seconds in enumerate((20.0, 5.21, 5.2, 5.22, 5.2), 1):
        lines += [f"Step Time : {seconds:.2f}s GPU utilization: 800.1MODEL_TFLOP/s/GPU",
                  iteration(n, 1000 * seconds)]
    return "\n".join([*lines, "[Rank 0] (after 2 iterations) memory (GB) | "
                      "mem-allocated-gigabytes: 20.1 | mem-max-allocated-gigabytes: 60.5 | "
                      "mem-max-reserved-gigabytes: 66.7"
                      ]) + "\n"


def bridge_summary() -> str:
    default = "  (Mcore default: None)"
    model = {
        "add_bias_linear": False, "attention_dropout": 0.0, "bf16": True, "ffn_hidden_size": 28672,
        "gated_linear_unit": True, "hidden_dropout": 0.0, "hidden_size": 8192, "kv_channels": 128,
        "normalization": "'RMSNorm'", "num_attention_heads": 64, "num_layers": 80,
        "num_query_groups": 8, "params_dtype": "torch.bfloat16", "sequence_parallel": True,
        "pipeline_model_parallel_size": 4, "tensor_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 5, "tp_comm_overlap": True}
    ddp = dict.fromkeys(("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather",
                         "use_distributed_optimizer"), True)
    optimizer = {"use_distributed_optimizer": True, "use_precision_aware_optimizer": True}
    lines = ["=" * 70, "Configuration Summary (Non-Default Values vs Megatron Core)", "=" * 70]
    for section, fields in (("optimizer", optimizer), ("ddp", ddp), ("model", model)):
        lines += ["", f"[{section}] Non-default values (vs Mcore Config):",
                  *(f"  {name}: {value}{default}" for name, value in fields.items())]
    lines += ["", "-" * 70, "Other Configuration Values:", "-" * 70, "", "[train]:",
              "  global_batch_size: 128", "  micro_batch_size: 1", "", "[dataset]:",
              "  seq_length: 8192", "", "=" * 70,
              "INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to "
              "constant 16"]
    return "\n".join(lines) + "\n" + bridge_steps()


def titan(mode: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Settings of torchtitan up to 0.2."""
    return {"job": {"print_config": True}, "model": {"name": "llama3", "flavor": "8B",
                                                     "converters": []},
            "training": {"seq_len": 8192, "local_batch_size": 2, "global_batch_size": -1, **more},
            "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2},
            "activation_checkpoint": {**mode}}


def titan_steps(prefix: str = "", colour: str = "") -> str:
    lines = []
    clock = 0.0
    for n, seconds in ((1, 10.0), (10, 2.1), (20, 2.0), (30, 2.02), (40, 2.0)):
        clock += seconds * (10 if n > 10 else 9 if n == 10 else 1)
        stamp = f"2026-03-01 10:{int(clock) // 60:02d}:{clock % 60:06.3f}".replace(".", ",")
        lines.append(f"{prefix}[titan] {stamp} - root - INFO - {colour}step: {n:2}  "
                     f"loss:  8.19960  grad_norm:  1.2000  memory: {40 + n / 10:5.2f}GiB(52.79%)  "
                     "tps: 8,192  tflops: 440.13  mfu: 44.50%")
    return "\n".join(lines) + "\n"


TITAN = "[titan] 2026-03-01 09:59:00,000 - root - INFO - "


def titan_dict() -> str:
    given = titan({"mode": "full"}, compile=True)
    return f"{TITAN}Running with args: {given}\n{titan_steps()}"


def titan_json() -> str:
    given = titan({"mode": "selective", "selective_ac_option": "op"})
    given["compile"] = {"enable": True}
    text = json.dumps(given, indent=2)
    body = "\n".join(f"[rank0]:{line}" for line in
                     f"\x1b[32m{TITAN}Running with configs: {text}".splitlines())
    return (f"[rank0]:{TITAN}CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n{body}\n"
            f"{titan_steps('[rank0]:', chr(27) + '[31m')}")


def titan_new() -> str:
    given = {
        "model_spec": {"name": "llama3", "flavor": "8B", "model": {"dim": 4096}},
        "activation_checkpoint": {"preserve_rng_state": True, "debug": False},
        "loss": {"num_chunks": 8}, "override": {"imports": []},
        "training": {"local_batch_size": 1, "global_batch_size": 16, "seq_len": 8192},
        "parallelism": {"data_parallel_shard_degree": 8, "tensor_parallel_degree": 1},
        "compile": {"enable": True}, "debug": {"print_config": True}}
    return f"{TITAN}Running with configs: {json.dumps(given, indent=2)}\n{titan_steps()}"


HF_MODEL = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "transformers_version": "4.57.1",
    "vocab_size": 32000}


def trainer() -> str:
    bar = "".join(
        f"\r{n:3}%|#         | {n}/96 [00:{8 * n:02d}<19:00, {rate}]" for n, rate in enumerate(
            ("?it/s", "12.01s/it", " 9.50s/it", " 9.51s/it", " 9.49s/it", " 9.52s/it")))
    return "\n".join([
        f"Model config LlamaConfig {json.dumps(HF_MODEL, indent=2)}", "",
        "MA 12.56 GB         Max_MA 14.1 GB         CA 14.2 GB         Max_CA 15 GB ",
        json_of_engine(3, 4, 4, 128), "Training/evaluation parameters Seq2SeqTrainingArguments(",
        "_n_gpu=1,", "bf16=True,", "fp16=False,", "gradient_accumulation_steps=4,",
        "gradient_checkpointing=True,", "per_device_train_batch_size=4,",
        "optim=OptimizerNames.ADAMW_TORCH,", ")", "  Total optimization steps = 96", bar]) + "\n"


def axolotl() -> str:
    given = {
        "base_model": "NousResearch/Llama-2-7b-hf", "bf16": True, "fp16": False, "tf32": False,
        "deepspeed": "deepspeed_configs/zero2.json", "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True, "learning_rate": 2e-05, "micro_batch_size": 2,
        "optimizer": "adamw_torch_fused", "sequence_len": 4096, "world_size": 8,
        "is_llama_derived_model": True, "context_parallel_size": 1}
    line = ("{'loss': 1.2, 'grad_norm': 0.5, 'memory/max_active (GiB)': 50.1, "
            "'memory/max_allocated (GiB)': 49.53, 'memory/device_reserved (GiB)': 62.0}")
    return "\n".join([
        "[2026-03-01 10:00:00,123] [INFO] [axolotl.cli.config.load_cfg:336] [PID:123] config:",
        json.dumps(given, indent=2), f"Model config LlamaConfig {json.dumps(HF_MODEL, indent=2)}",
        json_of_engine(2, 2, 2, 32), line,
        "  3%|3         | 3/90 [00:09<04:00,  3.00s/it]"]) + "\n"


def maxtext() -> str:
    given = {
        "attention": "cudnn_flash_te", "base_config": "base.yml", "dcn_data_parallelism": 2,
        "dtype": "bfloat16", "emb_dim": 4096, "hardware": "gpu", "ici_data_parallelism": 1,
        "ici_fsdp_parallelism": 8, "ici_parallelism": [1, 1, 8], "logical_axis_rules": [["a", []]],
        "max_target_length": 4096, "mlpwo": "remat", "model_name": "llama2-7b", "num_slices": 1,
        "per_device_batch_size": 4.0, "quantization": "", "remat_policy": "full", "steps": 10,
        "vocab_size": 32000, "weight_dtype": "float32", "xprof_e2e_enable_fw_power_level": None}
    at = "I0301 10:00:00.000000 140000 pyconfig.py:584] "
    steps = [f"completed step: {n}, seconds: {s:.3f}, TFLOP/s/device: 195.100, Tokens/s/device: "
             "4194.304, total_weights: 262144, loss: 11.000"
             for n, s in enumerate((44.9, 0.319, 3.95, 3.9, 3.91, 3.9, 3.89))]
    return "\n".join([*(f"{at}Config param {name}: {value}" for name, value in given.items()),
                      "Total memory size: 54.2 GB, Output size: 5.0 GB, Temp size: 49.0 GB",
                      *steps]) + "\n"


NEMO = """\
[NeMo I 2024-05-01 10:00:01 megatron_gpt_pretraining:37]

    ************** Experiment configuration ***********
[NeMo I 2024-05-01 10:00:01 megatron_gpt_pretraining:38]
    name: megatron_gpt
    restore_from_path: null
    trainer:
      devices: 8
      num_nodes: 2
      precision: bf16
    model:
      mcore_gpt: true
      micro_batch_size: 4
      global_batch_size: 256
      tensor_model_parallel_size: 2
      pipeline_model_parallel_size: 2
      encoder_seq_length: 2048
      max_position_embeddings: ${.encoder_seq_length}
      num_layers: 24
      hidden_size: 2048
      ffn_hidden_size: 8192
      num_attention_heads: 16
      hidden_dropout: 0.0
      attention_dropout: 0.0
      transformer_engine: true
      megatron_amp_O2: true
      attention_type: multihead
      optim:
        name: distributed_fused_adam

GPU available: True (cuda), used: True
[NeMo I 2024-05-01 10:00:10 megatron_base_model:574] Padded vocab_size: 50432, original \
vocab_size: 50257, dummy tokens: 175.
"""


def nemo() -> str:
    bar = "".join(f"\rEpoch 0: :   1%|1         | {n}/500 [00:1{n}<1:20:00, v_num=, global_step="
                  f"{n}.0, train_step_timing in s={seconds}]"
                  for n, seconds in enumerate((9.1, 2.3, 2.31, 2.3, 2.32)))
    return f"{NEMO}{bar}\n"


def neox() -> str:
    """Rows say what is no default."""
    own = {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048,
           "max_position_embeddings": 2048, "pos_emb": "rotary", "no_weight_tying": True,
           "attention_config": ["flash"] * 24, "precision": "bfloat16", "model_parallel_size": 2,
           "pipe_parallel_size": 2, "checkpoint_activations": True, "train_batch_size": 128,
           "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
           "optimizer": {"type": "Adam", "params": {"lr": 0.0002}}, "global_num_gpus": 16,
           "zero_optimization": {"stage": 1, "overlap_comm": True}, "is_pipe_parallel": True,
           "clip_grad": 1.0}
    default = {"activation": "gelu", "norm": "layernorm", "init_method_std": 0.02, "rank": None}
    rows = [f"{f'  {name} {dots * (32 - len(name))} {value}':.<64}{what}" for dots in "."
            for what, given in (("updated", own), ("default", default))
            for name, value in given.items()]
    lines = [f" samples/sec: 60.1 | iteration {n:8d}/  320000 | elapsed time per iteration (ms): "
             f"{ms} | learning rate: 2.000E-04 | lm_loss: 1.1E+01 |"
             for n, ms in ((10, 4000.0), (20, 2130.0), (30, 2120.0), (40, 2130.0))]
    return "\n".join(["-------------------- arguments --------------------", *rows,
                      "---------------- end of arguments ----------------",
                      " > padded vocab (size: 50277) with 27 dummy tokens (new size: 50304)",
                      *lines]) + "\n"


LOGS: dict[str, str] = {
    "megatron": megatron(), "megatron-2021": megatron_2021(),
    "megatron-deepspeed": megatron_deepspeed(), "bridge-yaml": BRIDGE_YAML + bridge_steps(),
    "bridge-summary": bridge_summary(), "torchtitan-0.1": titan_dict(),
    "torchtitan-0.2": titan_json(), "torchtitan-0.3": titan_new(), "trainer": trainer(),
    "axolotl": axolotl(), "maxtext": maxtext(), "nemo": nemo(),
    "gpt-neox": neox()}
"""By the software and its version."""
SAID: dict[str, dict[str, Any]] = {
    "torchtitan-0.1": {"devices": 8}, "torchtitan-0.2": {"devices": 8},
    "torchtitan-0.3": {"devices": 8}, "trainer": {"seq_len": 4096}}
"""What a log does not say."""
