"""MaxText's YAML, on GPUs.

Names and meanings are those of AI-Hypercomputer/maxtext@e591f30 src/maxtext/configs/types.py:1220
to 1300 (axes, pipeline, remat_policy) and src/maxtext/configs/base.yml:105 to 190, 531 (mesh_axes),
532 to 640 (logical_axis_rules), 731, 968; processes are started as
src/maxtext/utils/max_utils.py:317 asks. A process drives one device.

Ranks are numbered along the axes: stages, replicas, fsdp, context, tensor, expert. Experts are an
axis of their own beside tensor parallelism, which the batch is divided over too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.figures import Figures, figures, model_figures
from nest.frameworks.known import catalog_name
from nest.frameworks.script import LaunchScript
from nest.frameworks.settings import Setting, settings
from nest.frameworks.target import Files, Sheet, Target, model_of, written
from nest.inputs.formats import number_format
from nest.inputs.model import Model

VERSION = "MaxText e591f30"
CONFIG = "plan.yml"
MODELS = {name: name for name in (
    "gpt-oss-120b", "gpt3-175b", "llama2-7b", "llama3-8b", "llama3-70b", "llama3.1-8b",
    "llama3.1-405b", "mistral-7b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "gemma2-9b")} | {"deepseek-v3": "deepseek3-671b"}
"""Files of src/maxtext/configs/models by names of the catalog."""

QUANTIZED = {"fp8": "fp8", "fp8-delayed": "te_fp8_delayedscaling", "mxfp8": "te_mxfp8",
             "nvfp4": "te_nvfp4"}
"""Values of quantization by number format."""

SETTINGS = (
    Setting("hardware", "hardware"),
    Setting("model_name", "model_name"),
    Setting("mtp", "mtp_num_layers", unless=(0,)),
    Setting("seq_len", "max_target_length"),
    Setting("device_batch", "per_device_batch_size"),
    Setting("accumulated", "gradient_accumulation_steps"),
    Setting("one", "dcn_data_parallelism"),
    Setting("data", "ici_data_parallelism"),
    Setting("fsdp", "ici_fsdp_parallelism"),
    Setting("optimizer_only", "shard_optimizer_over_data"),
    Setting("pp", "ici_pipeline_parallelism"),
    Setting("stage_layers", "num_layers_per_pipeline_stage"),
    Setting("micro_batches", "num_pipeline_microbatches", when={"pipeline": (True,)}),
    Setting("one", "num_pipeline_repeats", when={"pipeline": (True,)}),
    Setting("cp_rings", "ici_context_parallelism"),
    Setting("cp_a2a", "ici_context_usp_ulysses_parallelism", unless=(1,)),
    Setting("cp_comm", "context_parallel_strategy",
            {"p2p": "ring", "a2a": "ulysses", "all_gather": "all_gather", "a2a+p2p": "usp"},
            when={"rings": (True,)}),
    Setting("tensor", "ici_tensor_parallelism"),
    Setting("tensor_sequence", "ici_tensor_sequence_parallelism"),
    Setting("ep", "ici_expert_parallelism"),
    Setting("policy", "remat_policy"),
    Setting("dtype", "dtype", {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}),
    Setting("precision", "quantization", QUANTIZED),
    Setting("gradient_dtype", "grad_dtype", {"fp32": "float32", "bf16": "bfloat16"}),
    Setting("optimizer", "opt_type", {"adam": "adamw", "sgd": "sgd", "muon": "muon"}),
    Setting("attention", "attention"),
    # GPUs accumulate gradients without it: src/maxtext/configs/pyconfig_deprecated.py:803.
    Setting("accumulates", "shardy", {True: False}, unless=(False,)),
)
"""Settings of the YAML."""
OWN = (
    Setting("block", "decoder_block"),
    Setting("model.layers", "base_num_decoder_layers"),
    Setting("model.hidden", "base_emb_dim"),
    Setting("model.heads", "base_num_query_heads"),
    Setting("model.kv_heads", "base_num_kv_heads"),
    Setting("model.head_dim", "head_dim"),
    Setting("model.ffn", "base_mlp_dim"),
    Setting("model.vocab", "vocab_size"),
    Setting("model.tied_embeddings", "logits_via_embedding"),
)
"""Of a model that MaxText has no file for: Llama 2's kind of layers in other sizes."""
POLICIES = {("norm", "mlp_act"): "minimal_with_context",
            ("core_attn", "norm", "mlp_act"): "minimal"}
"""Values of remat_policy by recomputed modules."""
_LLAMA = {"kind": "decoder", "relative_positions": 0, "token_types": 0, "layer_norms": 2,
          "final_norm": True, "embedding_norm": False, "head_transform": False, "head_bias": False,
          "pooler": False, "vision": None, "chunked": False, "recurrence": None, "layer_types": (),
          "unrotated": False, "parallel": False, "output_bias": False, "mlp_bias": False,
          "qk_norm": False, "qkv_bias": False, "attention_gate": False, "sinks": False,
          "patch_width": 0, "mla": None, "window": None, "mtp_layers": 0, "gated": True,
          "norm": "rmsnorm", "norm_bias": False, "bias": False, "positions": 0, "moe": None}
"""Properties of Llama 2's layers."""


def figures_here(plan: Plan) -> Figures:
    """Figures of a plan that the tables name."""
    job, way, stage = plan.inputs.job, plan.configuration, plan.configuration.stages[0]
    model = model_of(plan)
    found = figures(job, way)
    name = MODELS.get(catalog_name(model))
    replicas, shards = found["replicas"], found["shards"]
    assert isinstance(replicas, int) and isinstance(shards, int)
    accumulated = 1 if way.pp > 1 else job.global_batch // (way.outer_dp * way.micro_batch)
    devices = way.outer_dp * way.pp * (stage.devices[1] - stage.devices[0])
    sharded = stage.zero == 3
    return {
        **found, **model_figures(model), "hardware": "gpu", "one": 1,
        "model_name": name, "block": None if name else "llama2", "mtp": model.mtp_layers,
        "device_batch": job.global_batch / accumulated / devices, "accumulated": accumulated,
        "accumulates": accumulated > 1,
        "data": replicas if sharded else replicas * shards,
        "fsdp": shards // stage.ep if sharded else 1, "optimizer_only": stage.zero == 1,
        "pipeline": way.pp > 1, "stage_layers": model.layers // way.pp if way.pp > 1 else None,
        "rings": stage.cp > 1, "cp_rings": stage.cp // stage.cp_a2a,
        "tensor": 1 if stage.sp else stage.tp,
        "tensor_sequence": stage.tp if stage.sp else 1,
        "policy": "full" if stage.recompute == "full" else POLICIES.get(stage.recompute_modules),
        "dtype": number_format(job.precision).wide or job.precision,
        "attention": "cudnn_flash_te" if job.stack.flash_attention else "dot_product"}


def _inexpressible(plan: Plan) -> Iterator[str]:
    job, stage, model = plan.inputs.job, plan.configuration.stages[0], model_of(plan)
    if not MODELS.get(catalog_name(model)):
        yield from _unlike_llama(model)
    elif model.layers % plan.configuration.pp:
        yield f"pp {plan.configuration.pp}: stages have equal layers"
    if job.optimizer == "sgd-momentum":
        yield "job.optimizer sgd-momentum: opt_type sgd has no momentum"
    if stage.zero == 1 and stage.shard == "dp_in":
        yield "shard dp_in: shard_optimizer_over_data shards over the whole data axis"
    if stage.zero != 3:
        for name, degree in (("cp", stage.cp), ("ep", stage.ep)):
            if degree > 1:
                yield (f"{name} {degree} with zero {stage.zero}: logical_axis_rules shard "
                       "parameters over this axis, as ZeRO-3 does")
    if stage.ep > 1 and stage.cp > 1:
        yield f"ep {stage.ep} with cp {stage.cp}: experts are an axis beside the context's"
    elif stage.ep > 1 and stage.dp_in % stage.ep:
        yield f"ep {stage.ep}: the expert axis divides the data-parallel ranks of a block"


def _unlike_llama(model: Model) -> Iterator[str]:
    for name, plain in _LLAMA.items():
        if getattr(model, name) != plain:
            yield (f"model.{name}: MaxText has no file for {model.name}, and its layers are not "
                   "those of Llama 2")


def _order(plan: Plan) -> tuple[Rank, ...]:
    """Along the axes of the mesh, the last fastest."""
    ep = plan.configuration.stages[0].ep

    def place(rank: Rank) -> tuple[int, ...]:
        return rank.stage, rank.dp // ep, rank.cp, rank.tp, rank.dp % ep

    return tuple(sorted(plan.ranks(), key=place))


def configuration(plan: Plan, title: str, priced: str) -> str:
    """The text of the YAML."""
    given, model = figures_here(plan), model_of(plan)
    own = {} if MODELS.get(catalog_name(model)) else settings(OWN, given)
    rows = {"base_config": "base.yml", **settings(SETTINGS, given), **own}
    lines = [f"# {title}", f"# {priced}",
             *(f"{name}: {_yaml(value)}" for name, value in rows.items())]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    """Words of these tables need no quotes; truth has its own."""
    return str(value).lower() if isinstance(value, bool) else \
        f'"{value}"' if isinstance(value, str) else repr(value)


ASKED: Mapping[str, str] = {
    "RUN_NAME": "name of the run", "OUTPUT": "folder that is written to (base_output_directory)",
    "DATASET_TYPE": "dataset_type: tfds, grain or hf, and its data as arguments (below); synthetic "
                    "to time a step",
    "TOKENIZER": "tokenizer_path", "STEPS": "steps"}
"""Variables that the user sets; its other settings are arguments."""


def unsaid(model: Model) -> list[str]:
    """Settings that no plan has: src/maxtext/configs/base.yml:40 to 57, 227, 716, 777 to 799, 870,
    1015."""
    found = ["data: dataset_path, dataset_name; grain_train_files; hf_path, hf_train_files; "
             "tokenizer_type (sentencepiece)",
             "learning rate: learning_rate (3e-5), warmup_steps_fraction",
             "checkpoints: enable_checkpointing, checkpoint_period, load_parameters_path"]
    if not MODELS.get(catalog_name(model)):
        found.append("positions: rope_max_timescale (10000)")
    if model.moe is not None:
        found.append("balance of experts: load_balance_loss_weight (0)")
    return found


def _files(given: Sheet) -> Files:
    script = LaunchScript(
        title=(given.title, given.priced), asked=ASKED, sections={},
        unsaid=unsaid(model_of(given.plan)), variables={"NVTE_FUSED_ATTN": "1"},
        given=['OWN=(run_name="${RUN_NAME:-}" base_output_directory="${OUTPUT:-}"',
               '  dataset_type="${DATASET_TYPE:-}" tokenizer_path="${TOKENIZER:-}" '
               'steps="${STEPS:-}")'],
        program="-m maxtext.trainers.pre_train.train", words=(f'"$here/{CONFIG}"',), more=("OWN",),
        # It takes the numbers of its devices from here, among all of the node.
        process=("unset CUDA_VISIBLE_DEVICES", "export SLURM_STEP_GPUS=$LOCAL_RANK",
                 "export JAX_COORDINATOR_IP=$MASTER_ADDR JAX_COORDINATOR_PORT=$MASTER_PORT",
                 "export NNODES=$WORLD_SIZE NODE_RANK=$RANK"))
    return written(given, script, {
        CONFIG: configuration(given.plan, given.title, given.priced)})


TARGET = Target(
    version=VERSION, rules=(("MaxText", "e591f30"),), stacks="maxtext",
    inexpressible=_inexpressible, order=_order, files=_files, alone=True)
