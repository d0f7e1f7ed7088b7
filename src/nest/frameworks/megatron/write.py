"""Megatron-LM's command line of a configuration: arguments of `pretrain_gpt.py`, by section.

The arguments are tables in :mod:`nest.frameworks.megatron.table`; `.ci/frameworks` has Megatron's
own parser take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nest.frameworks.figures import Figure
from nest.frameworks.megatron.table import (
    SECTIONS,
    is_fsdp,
    memory_figures,
    model_figures,
    parallel_figures,
    training_figures,
)
from nest.frameworks.settings import settings
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.offload import Offload

VERSION = "Megatron-LM core_v0.16.1"
SOFTWARE = ("Megatron-Core", "Megatron-FSDP")
"""Software of stacks whose plans it runs, as their tables of rules name it."""
RULES = "0.16.1"
"""Version of these tables."""
Value = str | int | float | Sequence[str] | None
"""Of an argument; None: it is a flag."""
Arguments = dict[str, Value]

_BLACKWELL = ("b200", "b300", "gb200", "gb300")
_PLAIN = {"relative_positions": 0, "token_types": 0, "layer_norms": 2, "final_norm": True,
          "embedding_norm": False, "head_transform": False, "head_bias": False, "pooler": False,
          "vision": None, "chunked": False, "recurrence": None, "layer_types": (),
          "unrotated": False, "parallel": False, "output_bias": False, "mlp_bias": False,
          "qk_norm_form": "head", "attention_gate": False, "sinks": False, "patch_width": 0}
"""Properties of a model that Megatron-Core's GPT has no arguments for, and what they must be."""


def inexpressible(model: Model, job: Job, way: Configuration) -> Iterator[str]:
    """What no argument says, a sentence each; the rules of the stack are not repeated."""
    if model.kind != "decoder":
        yield f"model.kind {model.kind}: only decoders have a launch script (pretrain_gpt.py)"
    for name, plain in _PLAIN.items():
        if getattr(model, name) != plain and model.kind == "decoder":
            yield f"model.{name}: Megatron-Core's GPT has no argument for it"
    if model.moe is not None and model.moe.clamped:
        yield "model.moe.clamped: --activation-func-clamp-value needs a value, which no plan has"
    if model.moe is not None and model.moe.router_bias:
        yield "model.moe.router_bias: Megatron-Core's router has no trained bias of this kind"
    if model.mla is not None and model.mla.indexer is not None:
        yield "model.mla.indexer: sparse attention has no arguments in core_v0.16.1"
    if model.norm_bias != (model.norm == "layernorm"):
        yield "model.norm_bias: Megatron-Core's LayerNorm has a bias, its RMSNorm has none"
    if model.positions and model.positions < job.seq_len:
        yield (f"job.seq_len {job.seq_len}: the model has {model.positions} learned positions "
               "(--max-position-embeddings)")
    if model.mtp_layers and not model.rotary:
        yield "model.mtp_layers: multi-token prediction needs rotary positions"
    if job.optimizer == "muon":
        yield from (f"stack.{name} {given:g}: Muon hides nothing; allowed: 0"
                    for name in ("overlap_grad_reduce", "overlap_param_gather")
                    if (given := getattr(job.stack, name)))
    elif job.optimizer != "adam" and way.stages[0].zero:
        yield f"job.optimizer {job.optimizer}: the distributed optimizer (zero 1) is Adam's"
    if job.stack.dispatch_fp8:
        yield "stack.dispatch_fp8: no argument sends tokens to experts in fp8"
    yield from (f"stack.{name}: what asks for it is not written"
                for name in ("fp8_attention", "fp8_head") if getattr(job.stack, name))
    yield from not_captured(model, job, is_fsdp(job))


def not_captured(model: Model, job: Job, fsdp: bool) -> Iterator[str]:
    """Why CUDA graphs do not capture what the stack says, besides its rules.

    ``fsdp``: Megatron-FSDP shards.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/transformer/transformer_config.py:1765,
    1898; of the whole step, megatron/training/arguments.py:1158.
    """
    graphs = job.stack.cuda_graphs
    if graphs == "none":
        return
    if graphs == "step" and model.moe is not None and not job.counted:
        yield (f"stack.cuda_graphs {graphs}: the number of tokens of an expert is not known when "
               "the step is captured; it is where experts are padded to a capacity "
               "(expert_padding) and the dispatcher is alltoall or hybridep")
    if fsdp:
        yield f"stack.cuda_graphs {graphs}: what Megatron-FSDP makes of them was not read"


def captured(model: Model, job: Job) -> tuple[str, ...]:
    """The scope of CUDA graphs: of a layer with experts, all up to its router and the dispatcher's
    preparation; of other layers the whole, which is empty."""
    layers: tuple[str, ...] = ("attn", "moe_router", "moe_preprocess") if model.moe else ()
    if job.capacity == "limited" and job.stack.dispatcher == "alltoall":
        # Its preparation asks the device: megatron/core/transformer/transformer_config.py:1771.
        layers = layers[:2]
    return {"none": (), "layers": layers, "step": ("full_iteration",)}[job.stack.cuda_graphs]


def _graphs(model: Model, job: Job) -> Arguments:
    """Arguments of CUDA graphs."""
    graphs, scope = job.stack.cuda_graphs, [*captured(model, job)]
    if graphs == "none":
        return {}
    if graphs == "step":  # a check for NaN waits for the device: megatron/training/arguments.py:725
        found: Arguments = {"cuda-graph-impl": "local", "cuda-graph-scope": scope,
                            "no-check-for-nan-in-loss-and-grad": None}
        if model.moe is not None:  # asked for by the same file, line 1161; of no use in training
            found["moe-pad-experts-for-cuda-graph-inference"] = None
        return found
    return {"cuda-graph-impl": "transformer_engine",
            **({"cuda-graph-scope": scope} if scope else {})}


def replica_by_replica(way: Configuration, listed: bool) -> bool:
    """Whether ranks go replica by replica, which a flag says, and not stage by stage.

    ``listed``: the plan needs a list of hosts, which orders what goes stage by stage.
    """
    return not listed and min(way.pp, way.outer_dp) > 1 and way.stages[0].dp_in == 1


def arguments(
    model: Model, job: Job, way: Configuration, layout: str | None, listed: bool
) -> dict[str, Arguments]:
    """The command line but for data, tokenizer, checkpoint and learning rate.

    Parameters
    ----------
    model, job, way : what is trained and how; nothing of :func:`inexpressible`.
    layout : text of ``--pipeline-model-parallel-layout``.
    listed : the plan needs a list of hosts.

    Returns
    -------
    Sections of arguments by name, without the two hyphens.
    """
    given: dict[str, Figure] = {
        **model_figures(model, job), **memory_figures(way), **training_figures(job, way),
        **parallel_figures(model, job, way, layout, replica_by_replica(way, listed))}
    return {**{name: {argument: None if value is True else value
                      for argument, value in settings(table, given).items()}
               for name, table in SECTIONS.items()}, "GRAPHS": _graphs(model, job)}


def variables(way: Configuration, job: Job, device: str) -> dict[str, str]:
    """Environment variables that Megatron's arguments ask for on a device, by its name.

    One connection keeps the order of kernels where tensor or context parallel traffic hides under
    them, before Blackwell; Megatron-FSDP and overlapped experts want several. Source:
    NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:687, 926 to 953, 1226.
    """
    stage, found = way.stages[0], {}
    if way.schedule == "combined":
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif is_fsdp(job):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    elif stage.tp * stage.cp > 1 and not device.casefold().startswith(_BLACKWELL):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if Offload.of(way.offload).modules:
        found["NVTE_CPU_OFFLOAD_V1"] = "1"
    return found


ASKED = {
    "DATA_PATH": "data, as --data-path takes them",
    "TOKENIZER": "folder or name of a Hugging Face tokenizer",
    "CHECKPOINT": "folder that checkpoints are read from and saved to",
    "LR": "learning rate",
    "TRAIN_ITERS": "steps"}
"""Variables of the shell that the user sets, and what they are."""


def unsaid(model: Model) -> list[str]:
    """Arguments that no plan has, whose defaults are those of no model.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:1655, 1821, 2705,
    megatron/training/training_config.py:124, megatron/core/transformer/transformer_config.py:55,
    311, 617 to 639.
    """
    found = ["model: --norm-epsilon (1e-5), --init-method-std (0.02)"]
    if model.rotary:
        found.append("positions: --rotary-base (10000), --rotary-percent, --use-rope-scaling with "
                     "--rope-scaling-factor")
    if model.moe is not None:
        found += ["scores of the router: --moe-router-score-function (softmax), "
                  "--moe-router-pre-softmax, --moe-router-topk-scaling-factor",
                  "balance of experts: --moe-router-load-balancing-type (aux_loss), "
                  "--moe-aux-loss-coeff (0),",
                  "  --moe-router-enable-expert-bias, --moe-router-bias-update-rate"]
    if model.mtp_layers:
        found.append("multi-token prediction: --mtp-loss-scaling-factor (0.1)")
    return [*found, "training: --lr-decay-style, --lr-warmup-iters, --min-lr, --weight-decay, "
            "--clip-grad, --adam-beta2, --split, --eval-iters, --seed"]


def data(model: Model) -> list[str]:
    """Lines of shell that make arguments of the variables: DATA."""
    return [
        "MEGATRON=${MEGATRON:-.}  # folder of Megatron-LM",
        'if [ -n "${MOCK_DATA:-}" ]; then  # made-up tokens, nothing saved: to time a step',
        "  DATA_PATH=mock TOKENIZER=mock CHECKPOINT=mock",
        "  LR=${LR:-1e-4} TRAIN_ITERS=${TRAIN_ITERS:-20}",
        # This tokenizer adds a token.
        f"  DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size {model.vocab - 1} "
        "--eval-iters 0)",
        "else",
        '  DATA=(--data-path "${DATA_PATH:-}" --tokenizer-type HuggingFaceTokenizer',
        # The tokenizer decides; this says what is priced, for who reads the script. Source:
        # megatron-core==0.19.2 megatron/core/tokenizers/utils/build_tokenizer.py:69, 143.
        f'    --tokenizer-model "${{TOKENIZER:-}}" --vocab-size {model.vocab}',
        '    --save "${CHECKPOINT:-}" --load "${CHECKPOINT:-}"',
        '    --save-interval "${SAVE_INTERVAL:-500}")',
        "fi",
        'DATA+=(--lr "${LR:-}" --train-iters "${TRAIN_ITERS:-}")']


def options(given: Mapping[str, Value]) -> list[list[str]]:
    """Words of each argument."""
    return [[f"--{name}", *_words(value)] for name, value in given.items()]


def _words(value: Value) -> list[str]:
    if value is None:
        return []
    return [str(value)] if isinstance(value, (str, int, float)) else [*value]
