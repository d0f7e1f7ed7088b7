"""Megatron-LM's command line as model, job and configuration.

Defaults and rules: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py, cited by line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from nest.costs.memory import SCALED
from nest.errors import InputError
from nest.evaluation.divisions import chunks_of_stages
from nest.frameworks.figures import Division, exchange, fields
from nest.frameworks.hosts import Placed, placed
from nest.frameworks.megatron.arguments import Figures, figures_given, layer_pattern, values_of
from nest.frameworks.megatron.write import MODULES, RECIPES, SHARDED, remainders_asked
from nest.frameworks.settings import number_or_text
from nest.inputs import load_stack
from nest.inputs.job import Job, Stack
from nest.inputs.model import Model
from nest.inputs.offload import Offload
from nest.inputs.space import MODULES as ALL_MODULES
from nest.inputs.space import Dispatcher
from nest.model import build_chain
from nest.units import shorten

GPT2 = 50257
"""Tokens of GPT-2's own vocabulary (openai/gpt-2 encoder.json, published as gpt2-vocab.json)."""


class Described(NamedTuple):
    """A command line in the terms of NEST."""

    model: dict[str, Any]
    job: dict[str, Any]
    configuration: dict[str, Any]
    """Empty: it fits no devices, and ``problem`` says why."""
    notes: tuple[str, ...]
    """What was assumed or has no price."""
    problem: str = ""


def described(
    words: Sequence[str], devices: int, *, name: str, vocab: int | None = None,
    stack: str | None = None, ignored: Sequence[str] = (), places: Placed | None = None,
    lenient: bool = False,
) -> Described:
    """Read the words behind the program.

    Parameters
    ----------
    words : of the command line.
    devices : that the job runs on.
    name : of the model.
    vocab : tokens of the vocabulary, which comes before that of the tokenizer.
    stack : catalog name of a stack; default: megatron-core, or megatron-fsdp as the arguments say.
    ignored : arguments to leave out, without hyphens.
    places : devices of the ranks, where the launch orders them itself.
    lenient : return what does not fit together on these devices too, without a configuration.

    Raises
    ------
    InputError : arguments that are not understood, missing, or do not fit together.
    """
    given, notes = values_of(words, ignored)
    figures = figures_given(given)
    model = _model(figures, given, name, vocab, notes)
    parsed = Model.parse(model, f"model {name}")
    job = _job(figures, given, devices, stack, parsed, notes)
    try:
        configuration = _configuration(
            figures, given, parsed, Job.parse(job, "job"), devices, places, notes)
    except InputError as error:
        if not lenient:
            raise
        return Described(model, job, {}, tuple(notes), str(error))
    return Described(model, job, configuration, tuple(notes))


# ---------------------------------------------------------------- model


def _model(
    f: Figures, given: Mapping[str, Any], name: str, vocab: int | None, notes: list[str]
) -> dict[str, Any]:
    gated, bias, norm = f["gated"], f["bias"], f.get("norm", "layernorm")
    hidden, layers = f["hidden"], f["layers"]
    ffn = f.get("ffn") or (  # lines 802 to 811
        int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden)
    position = f.get("position", "learned")
    found: dict[str, Any] = {
        "name": name, "layers": layers, "hidden": hidden, "heads": f["heads"], "ffn": ffn,
        "gated": gated, "vocab": vocab or _vocabulary(given, notes),
        "tied_embeddings": f["tied_embeddings"], "norm": norm, "bias": bias,
        "positions": f.get("max_positions") or f.get("seq_len") or 0
        if position == "learned" else 0,
        "unrotated": position == "none", "qkv_bias": f["qkv_bias"] and not bias,
        "mtp_layers": f.get("mtp_layers", 0), "sinks": given.get("softmax-type") == "learnable",
        "attention_gate": "attention-output-gate" in given}
    if f["latent"]:
        found["mla"] = _latent(f, given)
    else:
        # line 1349; without --group-query-attention its number of groups does not count
        found["kv_heads"] = (f.get("kv_heads") or f["heads"]) if f["grouped"] else f["heads"]
        if given.get("attention-head-type") == "multiquery":
            found["kv_heads"] = 1
        found["qk_norm"] = f["qk_norm"] or "qk-l2-norm" in given
        if "qk-l2-norm" in given:
            found["qk_norm_form"] = "plain"
        if f.get("head_dim"):
            found["head_dim"] = f["head_dim"]
    found.setdefault("kv_heads", f["heads"])
    if f.get("window") is not None:
        found |= _window(f, layers)
    if f.get("experts"):
        _experts(found, f, given, ffn)
    if f.get("attention_dropout", 0.1) or f.get("hidden_dropout", 0.1):
        notes.append("no price for dropout")
    found["source"] = "read from a command line of Megatron-LM"
    return {name: value for name, value in found.items() if value not in (False, 0)
            or name in ("gated", "tied_embeddings", "bias")}


def _vocabulary(given: Mapping[str, Any], notes: list[str]) -> int:
    tokenizer = given.get("tokenizer-type")
    if isinstance(given.get("padded-vocab-size"), int):
        return int(given["padded-vocab-size"])
    if isinstance(given.get("vocab-size"), int):
        # NullTokenizer adds the end of a document: class _NullTokenizer of Megatron-LM
        return int(given["vocab-size"]) + (tokenizer == "NullTokenizer")
    file = str(given.get("vocab-file", "")).rpartition("/")[2]
    if (tokenizer is None and "tokenizer-model" not in given or tokenizer == "GPT2BPETokenizer") \
            and (not file or "$" in file or file.startswith("gpt2")):
        if not file.startswith("gpt2"):
            what = f"--tokenizer-type {tokenizer}" if tokenizer else "no tokenizer"
            notes.append(f"the script names {what} and no file of its words: the vocabulary of "
                         f"GPT-2, {GPT2} tokens, is assumed (--vocab)")
        return GPT2
    raise InputError("--vocab-size: not given, and how many tokens the vocabulary of "
                     f"{tokenizer or 'the tokenizer'} has is in its files; give them by --vocab N")


def _latent(f: Figures, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults: lines 2725 to 2733."""
    found: dict[str, Any] = {
        "q_rank": f.get("q_rank") or 0, "kv_rank": f.get("kv_rank") or 32,
        "nope_dim": f.get("nope_dim") or 128, "rope_dim": f.get("rope_dim") or 64,
        "value_dim": f.get("value_dim") or 128}
    if "experimental-attention-variant" in given:
        found["indexer"] = {
            "heads": given.get("dsa-indexer-n-heads"), "top_k": given.get("dsa-indexer-topk"),
            "head_dim": given.get("dsa-indexer-head-dim")}
    return found


def _window(f: Figures, layers: int) -> dict[str, Any]:
    text = str(f["window"]).strip("()[] ").replace(" ", "")
    before, _, after = text.partition(",")
    size = number_or_text(before)
    if not isinstance(size, int) or size < 0 or after.strip(",") not in ("0", "-1"):
        raise InputError(f"--window-size: got {shorten(f['window'])}; allowed: tokens before, "
                         "and 0 behind, such as 4095,0")
    found: dict[str, Any] = {"window": size + 1}
    if f.get("windowed") is not None:
        there = layer_pattern(f["windowed"], layers, "window-attn-skip-freq", last_full=True)
        found["full_layers"] = [n for n, one in enumerate(there) if not one]
        if len(found["full_layers"]) == layers:
            return {}
    return found


def _experts(found: dict[str, Any], f: Figures, given: Mapping[str, Any], ffn: int) -> None:
    sparse = layer_pattern(f.get("sparse", 1), f["layers"], "moe-layer-freq")
    there = [n for n, one in enumerate(sparse) if one]
    if not there:
        raise InputError("--moe-layer-freq: no layer has experts; allowed: without --num-experts")
    moe: dict[str, Any] = {
        "experts": f["experts"], "top_k": f.get("top_k") or 2,
        "ffn": f.get("expert_ffn") or ffn,  # line 1016
        "shared_ffn": f.get("shared_ffn") or 0, "clamped": "activation-func-clamp-value" in given}
    moe["shared_gate"] = f["shared_gate"] and moe["shared_ffn"] > 0
    if f.get("router_groups"):
        moe |= {"groups": f["router_groups"],
                "group_limit": f.get("group_limit") or f["router_groups"]}
    every = there[1] - there[0] if len(there) > 1 else 1
    first = there[0] - every + 1
    if first >= 0 and there == list(range(there[0], f["layers"], every)):
        found["moe"] = moe | {"first_dense": first, "every": every}
        return
    found["moe"] = moe
    found["layer_kinds"] = [{"name": "dense_layer", "mlp": "dense"},
                            {"name": "moe_layer", "mlp": "experts"}]
    full = found.pop("full_layers", [])
    window = found.pop("window", None)
    if window is not None:
        found["layer_kinds"] = [
            {**kind, "name": f"{mark}{kind['name']}", **more}
            for kind in found["layer_kinds"]
            for mark, more in (("", {}), ("window_", {"window": window}))]
    found["layer_types"] = [
        ("window_" if window is not None and n not in full else "")
        + ("moe_layer" if one else "dense_layer") for n, one in enumerate(sparse)]
    used = {*found["layer_types"]}
    found["layer_kinds"] = [kind for kind in found["layer_kinds"] if kind["name"] in used]


# ---------------------------------------------------------------- job


def _job(
    f: Figures, given: Mapping[str, Any], devices: int, name: str | None, model: Model,
    notes: list[str],
) -> dict[str, Any]:
    base = name or ("megatron-fsdp" if f["fsdp"] else "megatron-core")
    stack = load_stack(base)
    precision = _precision(f)
    optimizer = str(f.get("optimizer", "adam")).removeprefix("dist_")
    if optimizer == "sgd" and f.get("momentum", 0.9):
        optimizer = "sgd-momentum"
    dp = devices // max(1, (f.get("tp") or 1) * (f.get("pp") or 1) * (f.get("cp") or 1))
    seq_len = f.get("seq_len")
    if seq_len is None:
        raise InputError("--seq-length: missing; needed: tokens of a sequence")
    if not f.get("micro_batch"):
        raise InputError("--micro-batch-size: missing; needed: sequences that a device takes at "
                         "once")
    job: dict[str, Any] = {
        "global_batch": f.get("global_batch") or f["micro_batch"] * max(1, dp),
        "seq_len": seq_len, "precision": precision, "optimizer": optimizer, **capacity_of(f, model)}
    changes = _stack(f, given, stack, Job.parse({**job, "stack": stack}, "job"), model, notes)
    return {**job, "stack": {"base": base, **changes} if changes else base}


def capacity_of(f: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Fields of a job: how many tokens an expert takes; a negative factor says that all.

    Source: megatron/core/transformer/transformer_config.py:1105, which refuses padding without one.
    """
    factor = f.get("capacity")
    endless = factor is None or isinstance(factor, (int, float)) and factor < 0
    if model.moe is None:
        return {}
    return {**({} if endless else {"expert_capacity": factor}),
            **({"expert_padding": True} if f.get("padded") else {})}


def _precision(f: Figures) -> str:
    """Number format of products; values without a price are refused before."""
    if f.get("fp4"):
        return "nvfp4"
    if f.get("fp8"):
        # Delayed scaling is the default: megatron/core/transformer/transformer_config.py:436.
        return {recipe: name for name, recipe in RECIPES.items()}[f.get("fp8_recipe", "delayed")]
    return next((one for one in ("bf16", "fp16") if f[one]), "fp32")


def _stack(
    f: Figures, given: Mapping[str, Any], stack: Stack, job: Job, model: Model, notes: list[str]
) -> dict[str, Any]:
    """What the arguments say otherwise than the stack."""
    zero = _zero(f)
    said: dict[str, Any] = {}
    overlaps = {"overlap_tp": f["sp"] and (f.get("tp") or 1) > 1,
                "overlap_grad_reduce": zero > 0 or not f["fsdp"],
                "overlap_param_gather": zero > 0}
    for name, asked in overlaps.items():
        if asked and not f[name]:
            said[name] = 0.0
    if job.precision == "fp16":
        said["gradient_dtype"] = "fp32" if f["gradients_fp32"] else "bf16"
    elif job.precision != "fp32":
        narrow = f["gradients_bf16"] or (  # lines 716 to 723
            given.get("main-grads-dtype") == "bf16" and not f["gradients_fp32"])
        kept = "fp8_gradient_dtype" if job.narrow else "gradient_dtype"
        said[kept] = "bf16" if narrow else "fp32"
    if remainders_asked(job, zero) and job.optimizer == "adam" and not f["offload_optimizer"]:
        said["master_remainders"] = f["precision_aware"]
    if model.moe is not None:
        dispatcher = f.get("dispatcher", "allgather")  # Megatron-Core: moe_token_dispatcher_type
        said["dispatcher"] = f.get("backend", "deepep") if dispatcher == "flex" else dispatcher
        assert said["dispatcher"] in get_args(Dispatcher)
    if given.get("attention-backend") in ("unfused", "local"):
        said["flash_attention"] = False
    graphs = "none"
    if given.get("cuda-graph-impl", "none") != "none" or {
            "enable-cuda-graph", "external-cuda-graph"} & {*given}:
        whole = "full_iteration" in str(given.get("cuda-graph-scope", ""))
        graphs = "step" if whole else "layers"
    said["cuda_graphs"] = graphs
    if job.precision in SCALED:
        said["fp8_gather"] = f["fp8_gather"]
    return {name: value for name, value in said.items() if getattr(stack, name) != value}


def modules_of(words: Iterable[str], where: str) -> tuple[str, ...]:
    """Modules of recompute by Megatron-Core's names.

    Raises
    ------
    InputError : a name that Megatron-Core has not, such as NEST's own.
    """
    names, asked = {MODULES.get(one, one): one for one in ALL_MODULES}, {*words}
    if unknown := asked - {*names}:
        raise InputError(f"{where}: got {shorten(min(unknown))}; allowed: {', '.join(names)}")
    return tuple(one for name, one in names.items() if name in asked)


def _zero(f: Figures) -> int:
    if f["fsdp"]:
        return SHARDED.index(f.get("strategy") or "no_shard")
    return int(f["sharded"] or f.get("optimizer") == "dist_muon")


# ---------------------------------------------------------------- configuration


def _configuration(
    f: Figures, given: Mapping[str, Any], model: Model, job: Job, devices: int,
    places: Placed | None, notes: list[str],
) -> dict[str, Any]:
    tp, pp, cp = (f.get(name) or 1 for name in ("tp", "pp", "cp"))
    ep, etp = (f.get("ep") or 1, f.get("etp") or tp) if model.moe else (1, tp)
    product = tp * pp * cp
    if devices % product or devices < product:
        raise InputError(f"{devices} devices are no multiple of tensor x pipeline x context "
                         f"parallel size = {product}; say how many there are by --devices N")
    dp = devices // product
    zero = _zero(f)
    instances = f.get("instances") or 1
    if dp % instances:
        raise InputError(f"--num-distributed-optimizer-instances: got {instances}; allowed: a "
                         f"divisor of the data parallel size {dp}")
    outer, stride = _places(f, places, instances, dp, (tp, pp, cp), ep * etp, notes)
    layout, vpp, (first, last) = split(f, given, model, pp)
    chunks = chunks_of_stages(build_chain(model), job, pp, vpp, layout=layout,
                              first_stage_layers=first, last_stage_layers=last)
    recompute, layers = f["recompute"], None
    modules: tuple[str, ...] = ()
    if recompute == "selective":
        modules = modules_of(f.get("recompute_modules") or ("core_attn",), "--recompute-modules")
    elif recompute == "full":
        if f.get("recompute_method") == "block":
            layers = f.get("recompute_layers") or 1
        elif (f.get("recompute_layers") or 1) > 1:
            notes.append("layers that are recomputed together are priced as one by one")
    elif "moe-layer-recompute" in given:
        recompute, modules = "selective", ("moe",)
    away = Offload(
        float(f.get("offload_share") or 1.0) if f["offload_optimizer"] else 0.0,
        f.get("offload_layers", 0), tuple(f.get("offload_modules") or ()))
    own = instances > 1 or f.get("instances") is not None and zero
    return fields(Division(
        chunks, dp, f["micro_batch"], tp=tp, sp=f["sp"],  # line 913: with tp alone
        cp=cp, **exchange(f, cp, "--hierarchical-context-parallel-sizes"), ep=ep, etp=etp,
        zero=zero, replicas=instances if own else None, recompute=recompute, modules=modules,
        recompute_layers=layers, schedule="combined" if f["combined"] else None,
        group=f.get("group"), offload=str(away)), outer, stride, "configuration")


def split(
    f: Figures, given: Mapping[str, Any], model: Model, pp: int
) -> tuple[str | None, int | None, tuple[int | None, int | None]]:
    """Layout, virtual stages, and layers of the first and the last stage; lines 515 to 556."""
    if f.get("layout") is not None:
        return str(f["layout"]), None, (None, None)
    each = given.get("num-layers-per-virtual-pipeline-stage")
    counted = ["account-for-embedding-in-pipeline-split" in given,
               "account-for-loss-in-pipeline-split" in given]
    total = model.layers + sum(counted)
    vpp = given.get("num-virtual-stages-per-pipeline-rank") or 1
    if each is not None:
        if not isinstance(each, int) or each < 1 or total % (pp * each):
            raise InputError(f"--num-layers-per-virtual-pipeline-stage: got {each}; allowed: a "
                             f"divisor of {total / pp:g}, the layers of a stage")
        vpp = total // pp // each
    if any(counted) and pp > 1:
        size, left = divmod(total, pp * vpp)
        if left or size < 1:
            raise InputError(f"{total} layers with those counted in the pipeline split: allowed: a "
                             f"multiple of pp {pp} x virtual stages {vpp}")
        sizes = [size] * (pp * vpp)
        sizes[0] -= counted[0]
        sizes[-1] -= counted[1]
        parts = ["t" * n for n in sizes]
        parts[0], parts[-1] = "E" + parts[0], parts[-1] + "m" * model.mtp_layers + "L"
        return "|".join(parts), None, (None, None)
    first, last = (given.get(f"decoder-{which}-pipeline-num-layers")
                   for which in ("first", "last"))
    if first is None and last is None and model.layers % (pp * vpp):  # line 571
        raise InputError(f"--num-layers: got {model.layers}; allowed without a layout: a multiple "
                         f"of pp {pp} x virtual stages {vpp}")
    return None, vpp, (first, last)


def _places(
    f: Figures, places: Placed | None, instances: int, dp: int, degrees: tuple[int, int, int],
    experts: int, notes: list[str],
) -> tuple[int, int | None]:
    """Replicas, and the devices from one to the next, as the order of the ranks has them."""
    tp, pp, cp = degrees
    if places is not None:
        return placed(places, dp, tp, pp, cp)
    if instances > 1:
        if pp > 1 and not f["mapped"]:
            notes.append("ranks of a pipeline are priced replica by replica")
        return instances, None
    if pp > 1 and not f["mapped"]:  # tp-cp-ep-dp-pp
        return 1, None
    least = experts // math.gcd(experts, tp * cp)
    return (dp // least, None) if dp % least == 0 else (1, None)
