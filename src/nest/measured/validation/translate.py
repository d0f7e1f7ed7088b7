"""From a measured run to the arguments of :func:`nest.evaluate`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from nest.errors import InputError
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.device import Device
from nest.inputs.job import UNKNOWN_STACK, Job, Routing, Stack
from nest.inputs.layers import MLA, MoE
from nest.inputs.loading import load_model
from nest.inputs.model import Model
from nest.inputs.space import Dispatcher
from nest.inputs.trainable import Trainable
from nest.measured.validation.cells import first_match, precision, recompute
from nest.measured.validation.degrees import configuration
from nest.measured.validation.hardware import (
    Shape,
    cluster,
    device,
    older,
    shape,
    stack,
    stack_name,
)
from nest.measured.validation.runs import Run, named_model
from nest.model import build_chain

if TYPE_CHECKING:
    from nest.measured.validation.runs import Run


class RunQuestion(NamedTuple):
    """Arguments of :func:`nest.evaluate`; ``nest.evaluate(*question)`` prices it."""

    model: Model
    cluster: Cluster
    job: Job
    configuration: Configuration


class Facts(NamedTuple):
    """A run without the figures of its stack and device."""

    model: Model
    shape: Shape
    configuration: Configuration
    stack: str
    """Name in the catalog, or provisional."""
    remarks: tuple[str, ...]
    """Facts that the source lacks, or that NEST prices differently."""


def question(
    run: Run,
    stacks: Mapping[str, Stack] | None = None,
    devices: Mapping[str, Device] | None = None,
) -> RunQuestion:
    """All inputs of the price of a run.

    Parameters
    ----------
    run : a run that can be priced.
    stacks : stacks to use instead of those of the catalog, by name.
    devices : devices to use instead, by name.

    Raises
    ------
    InputError : the run cannot be priced; the message is the reason.
    """
    found = facts(run)
    name = found.shape.device
    job = _job(run, stack(found.stack, stacks))
    on = devices[name] if devices and name in devices else device(name)
    return RunQuestion(found.model, cluster(found.shape, on), job, found.configuration)


ASYNC_TP = re.compile(r"\basync tp\b")
HIDDEN_TP = 0.3
"""Share of tensor-parallel traffic that torchtitan hides with asynchronous tensor parallelism: of
two pairs of runs of Llama-3.1-8B. Three pairs of Llama-3.1-70B, not fitted, say 0.2 to 0.6."""


def _job(run: Run, software: Stack) -> Job:
    if ASYNC_TP.search(run.notes.lower()):
        software = software.replace(overlap_tp=HIDDEN_TP)
    if run.whole("flash_attention") is not None:
        software = software.replace(flash_attention=run.whole("flash_attention") == 1)
    number = precision(run.text("precision"), run.framework)
    assert number is not None  # refused by nest.measured.validation.cells
    software = software.replace(**_stated(run, software))
    dropping = CAPACITY.search(_words(run))
    return Job(global_batch=run.degree("gbs_seqs"), seq_len=run.degree("seq_len"),
               precision=number, stack=software, routing=_routing_of(run),
               lengths=run.text("lengths") or None,
               expert_capacity=float(dropping[1] or 1.0) if dropping else None,
               expert_padding=dropping is not None,
               memory_margin=0.0)  # a run that was measured did fit


def _routing_of(run: Run) -> Routing:
    """What balances the experts of a run.

    Raises
    ------
    InputError : something else.
    """
    words = run.text("routing").lower() or "forced"
    if words not in get_args(Routing):
        raise InputError(f"routing {words}")
    return cast(Routing, words)


CAPACITY = re.compile(r"token ?drop(?: ([\d.]+))?")
"""Experts of a fixed capacity, 1 or the number that follows: tokens beyond it are dropped, missing
ones padded.

Megatron-Bridge's runs of this name have a factor of 1, padding, and the all-to-all dispatcher,
without which it refuses them (apply_moe_token_drop in NVIDIA-NeMo/Megatron-Bridge@v0.2.0
src/megatron/bridge/training/utils/moe_token_drop.py:25; its runner then leaves out DeepEP,
@v0.1.0rc4 scripts/performance/run_script.py:59).
"""


def _words(run: Run) -> str:
    return f"{run.model} {run.notes}".lower()


NORM_KERNEL = re.compile(r"\bRMS ?(?:Norm )?kernel\b", re.IGNORECASE)
"""Norms by one kernel, of software whose norms are elementary operations otherwise."""


def _stated(run: Run, software: Stack) -> dict[str, Any]:
    """Figures of the stack that a row states of its own, such as dispatcher and CUDA graphs."""
    found: dict[str, Any] = {}
    words = run.text("dispatcher").lower()
    if run.text("n_experts") and words:
        if words not in get_args(Dispatcher):
            raise InputError(f"dispatcher {words}")
        found["dispatcher"] = words
    if CAPACITY.search(_words(run)):
        found["dispatcher"] = "alltoall"
    if "fused grouped mlp" in run.notes.lower():
        found["fused_experts"] = True
    if NORM_KERNEL.search(run.notes):
        found["elementary"] = tuple(name for name in software.elementary if name != "norm")
    found |= {name: True for name in ("fp8_attention", "fp8_head")
              if name.replace("_", " ") in run.notes.lower()}
    graphs = run.text("cuda_graphs").lower()
    if graphs:
        found["cuda_graphs"] = first_match("cuda_graphs", graphs)
    return found


@lru_cache(maxsize=10_000)
def facts(run: Run) -> Facts:
    """Model, network, configuration and the names of stack and device of a run.

    Raises
    ------
    InputError : the run cannot be priced; the message is why.
    """
    if run.reason is not None:
        raise InputError(run.reason)
    known, remarks = model(run)
    remarks += [f"{column} {found.value}: {found.why}" for column, found in run.inferred.items()
                if column != "dp" and (column, found.value) != ("vpp", "1")]
    again = recompute(run.text("recompute"))
    assert again is not None  # refused by nest.measured.validation.cells
    net = shape(run.text("gpu"), run.text("gpu_mem_gb"), run.degree("n_gpus"),
                run.degree("gpus_per_node"), run.text("intra_node"),
                run.real("inter_node_gbps_per_gpu"))
    name = stack_name(run.framework, run.group, run.text("precision"), run.notes,
                      run.text("source"))
    if name == UNKNOWN_STACK:
        remarks.append(f"no stack describes {run.framework}: priced as {UNKNOWN_STACK}")
    if run.degree("ep") > 1 and not run.text("dispatcher"):
        remarks.append(f"dispatcher not stated: {stack(name).dispatcher}, the stack's")
    if CAPACITY.search(_words(run)):
        remarks.append("experts of a fixed capacity, padded, by all-to-all: no wait for the host")
    if ASYNC_TP.search(run.notes.lower()):
        remarks.append(f"asynchronous tensor parallelism hides {HIDDEN_TP:.0%} of its "
                       "traffic, fitted")
    way, more = configuration(run, build_chain(known), _job(run, stack(name)), again)
    remarks += [text for text in (
        again.remark, net.remark, older(run.framework, name), *more) if text]
    return Facts(known, net, way, name, tuple(remarks))


# ---------------------------------------------------------------- architecture


def model(run: Run) -> tuple[Model, list[str]]:
    """The model of a run, and remarks on priced differences from the run.

    A row that states no size has the catalog's model of its name. Else there are three families,
    by the shape of the MLP and the name. Gated: RMSNorm, no biases, rotary positions, its own
    output matrix (Llama, Qwen, GPT-OSS). Squared ReLU, or Nemotron: the same with LayerNorm
    (NVIDIA/NeMo-Framework-Launcher conf/training/nemotron). Else as GPT-2: LayerNorm, biases,
    learned positions, tied embeddings; the parameters that llm-foundry prints for its runs are
    those of this family to the last digit.

    Parameters
    ----------
    run : a run that can be priced.

    Raises
    ------
    InputError : the sizes are not a model, such as heads that do not divide the width.
    """
    known, remarks = _whole_model(run)
    if run.text("lora"):
        known = known.replace(trainable=adapters(run))
    return known, remarks


def adapters(run: Run) -> Trainable:
    """What a run trains whose cell `lora` has a rank, targets, and a share that is dropped, if any:
    `16 linear_qkv+linear_proj 0.1`.

    Raises
    ------
    InputError : the cell has another form, or names no targets.
    """
    rank, targets, dropout = (*run.text("lora").split(), "", "", "")[:3]
    given = {"rank": int(rank) if rank.isdecimal() else rank,
             "targets": targets.replace("+", ","), "dropout": dropout or 0.0}
    return Trainable.parse({"lora": given}, f"run {run.run_id}")


def _whole_model(run: Run) -> tuple[Model, list[str]]:
    """The model of :func:`model`, all of it trained."""
    named = named_model(run.fields)
    if named is not None:
        return load_model(named), []
    gated = run.whole("gated_mlp") == 1
    nemotron = "sqrelu" in run.text("arch").lower() or run.model.lower().startswith("nemotron")
    classic = not gated and not nemotron
    heads = run.whole("n_heads")
    remarks: list[str] = []
    data: dict[str, Any] = {
        "name": run.model, "layers": run.whole("n_layers"), "hidden": run.whole("d_model"),
        "heads": heads, "kv_heads": run.whole("n_kv_heads") or heads, "ffn": run.whole("d_ff"),
        "gated": gated, "vocab": run.whole("vocab"), "tied_embeddings": classic,
        "norm": "rmsnorm" if gated else "layernorm", "bias": classic,
        "positions": run.whole("seq_len") if classic else 0,
        "qk_norm": bool(re.match(r"qwen-?3", run.model.lower())),
    }
    if re.match(r"gpt[- _]?oss", run.model.lower()):
        data["bias"] = True
    if run.whole("kv_lora_rank") is not None:
        data |= {"mla": _latent(run), "kv_heads": heads, "qk_norm": False}
    elif run.whole("head_dim") is not None:
        data["head_dim"] = run.whole("head_dim")
    if run.whole("n_experts") is not None:
        data["moe"] = _experts(run)
    if run.whole("parallel_block"):
        data |= {"parallel": True, "layer_norms": run.whole("parallel_block")}
    if run.whole("mtp_layers"):
        data["mtp_layers"] = run.whole("mtp_layers")
    data |= _windows(run, remarks)
    return Model.parse(data, f"run {run.run_id}"), remarks


def _latent(run: Run) -> MLA:
    return MLA.parse({
        "q_rank": run.whole("q_lora_rank") or 0, "kv_rank": run.whole("kv_lora_rank"),
        "nope_dim": run.whole("qk_nope_head_dim"), "rope_dim": run.whole("qk_rope_head_dim"),
        "value_dim": run.whole("v_head_dim")}, f"run {run.run_id}: mla")


def _experts(run: Run) -> MoE:
    """Shared experts as wide as one routed expert of several are each so wide."""
    shared, each = run.whole("d_ff_shared") or 0, run.whole("d_ff_expert")
    number = run.whole("n_shared_experts") or 1
    given = {"experts": run.whole("n_experts"), "top_k": run.whole("top_k"), "ffn": each,
             "shared_ffn": shared * number if shared == each else shared,
             "first_dense": run.whole("first_dense") or 0,
             "groups": run.degree("n_expert_groups"),
             "clamped": bool(re.match(r"gpt[- _]?oss", run.model.lower()))}
    if run.whole("top_k_groups"):
        given["group_limit"] = run.whole("top_k_groups")
    return MoE.parse(given, f"run {run.run_id}: moe")


def _windows(run: Run, remarks: list[str]) -> dict[str, Any]:
    """Window and the layers without one; the last layer of every n has none."""
    words = run.text("attention_window").lower()
    if re.match(r"(?:none|full|0)?$", words):
        if "sliding" in run.text("arch").lower():
            remarks.append("sliding windows are not stated, and priced as full attention")
        return {}
    size, layers = re.search(r"\d+", words), run.degree("n_layers")
    if size is None:
        raise InputError(f"attention_window {words}")
    every = re.search(r"every (\d+)", words) or re.search(r"\b(\d+):1\b", words)
    period = 0
    if every:
        period = int(every[1]) + (":" in every[0])
    elif re.search(r"alternat|every (?:other|second)", words + run.text("arch").lower()):
        period = 2
    full = tuple(n for n in range(layers) if period and n % period == period - 1)
    return {"window": int(size[0]), "full_layers": full}
