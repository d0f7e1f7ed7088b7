"""MaxText's remat_policy: which named outputs of a layer are kept, and where.

What each policy keeps: AI-Hypercomputer/maxtext@e591f30 src/maxtext/layers/decoders.py:326 to 433,
src/maxtext/layers/nnx_decoders.py:1160 to 1268; the names: src/maxtext/layers/attentions.py:1323 to
1366, src/maxtext/layers/attention_op.py:2407, src/maxtext/layers/linears.py:602 to 624,
src/maxtext/layers/moe.py:1972 to 1985, 2243.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.frameworks.figures import Figures
from nest.frameworks.source import Source
from nest.frameworks.target import model_of
from nest.inputs import load_stack
from nest.inputs.offload import OFFLOAD_MODULES, Offload
from nest.model import Chain, build_chain
from nest.model.operators import OUTPUT_MODULES
from nest.units import shorten

TENSORS = {"core_attn": ("context",), "moe": ("moe_mlpwi_0", "moe_mlpwi_1"),
           "mlp": ("mlpwi_0", "mlpwi_1", "mlpwi"),
           "qkv_linear": ("query_proj", "key_proj", "value_proj", "qkv_proj"),
           "attn_proj": ("out_proj",)}
"""Names of outputs, by the module that does not run again where they are kept; the last of
several products is that of a fused one."""
KEPT: Mapping[str, tuple[str, ...]] = {
    "full": (), "minimal_with_context": (*TENSORS,),
    "minimal": ("moe", "mlp", *OUTPUT_MODULES),
    "save_dot_with_context_except_mlp": ("core_attn", *OUTPUT_MODULES),
    "save_dot_except_mlp": OUTPUT_MODULES,
    "save_qkv_proj": ("qkv_linear",), "save_out_proj": ("attn_proj",)}
"""Modules that do not run again, by policy."""
_SAME = {"save_dot_except_mlpwi": "save_dot_except_mlp", "minimal_flash": "minimal_with_context"}
"""Policies of another name, or that keep besides an output that no backward pass reads."""
_OFFLOADED = {"qkv_proj_offloaded": "save_qkv_proj", "minimal_offloaded": "minimal"}
"""Policies that move to the host what others keep."""
_AWAY = (("core_attn", "qkv_linear"), ("attn_proj", "core_attn"), ("mlp_norm", "attn_proj"))
"""By a module that moves to the host, the one whose output that is."""
INPUT = "decoder_layer_input"
UNPRICED = ("attention_out", "kv_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv", "engram",
            "indexer_cutoff_threshold")
"""Outputs of custom that no module stands for."""
UNREAD = ("mlpwo", "moe_mlpwo")
"""Outputs that no backward pass reads."""


def _there(chain: Chain) -> list[str]:
    """Modules of a model whose outputs have names."""
    return [name for name in chain.modules_under(load_stack("maxtext")) if name in TENSORS]


def remat_figures(plan: Plan) -> Figures:
    """The policy of a plan, and where each output is if that is custom."""
    stage, away = plan.configuration.stages[0], Offload.of(plan.configuration.offload)
    there = _there(build_chain(model_of(plan)))
    again = there if stage.recompute == "full" else [*stage.recompute_modules]
    kept = {name for name in there if name not in again}
    policy = next((one for one, names in KEPT.items() if {*names} & {*there} == kept), None)
    if policy is not None and not away.activations:
        return {"policy": policy, **{f"at_{name}": "remat" for name in TENSORS},
                "at_input": "device"}
    at = {name: "device" if name in kept else "remat" for name in TENSORS}
    if "mlp" not in there:  # of shared experts
        at["mlp"] = at["moe"]
    at |= {name: "offload" for module, name in _AWAY if module in away.modules and name in kept}
    inputs = away.checkpoints or {"attn_norm", "qkv_linear"} & {*away.modules}
    return {"policy": "custom", **{f"at_{name}": place for name, place in at.items()},
            "at_input": "offload" if inputs else "device"}


def mixed_names(plan: Plan) -> bool:
    """Whether a plan keeps outputs of dense MLPs alone, which have the names of experts'."""
    modules = plan.configuration.stages[0].recompute_modules
    return {"moe", "mlp"} <= {*_there(build_chain(model_of(plan)))} and (
        "moe" in modules and "mlp" not in modules)


def read_remat(
    asked: object, given: Mapping[str, Any], source: Source, chain: Chain, notes: list[str],
) -> tuple[str, tuple[str, ...], str]:
    """Recompute, its modules, and what is on the host.

    Parameters
    ----------
    asked : the policy.
    given : where outputs are, by name, if it is custom.

    Raises
    ------
    InputError : a policy without a price, or a place that there is not.
    """
    policy = _SAME.get(str(asked), str(asked))
    names = [name for tensors in TENSORS.values() for name in tensors]
    at = dict.fromkeys((*names, *UNPRICED), "remat") | {INPUT: "device"}
    if policy in KEPT:
        return *_recomputed({*KEPT[policy]}, source, chain), "none"
    if policy in _OFFLOADED:
        at |= {name: "offload" for module in KEPT[_OFFLOADED[policy]] for name in TENSORS[module]}
    elif policy == "custom":
        at |= {name: given[name] for name in at if name in given}
    else:
        allowed = ", ".join((*KEPT, *_SAME, *_OFFLOADED, "custom"))
        raise InputError(f"{source.where}: remat_policy: got {shorten(asked)}; allowed: {allowed} "
                         "(others have no price; --set remat_policy=full bounds the time from "
                         "above, minimal_with_context the memory)")
    for name, place in at.items():
        if place not in ("remat", "device", "offload"):
            raise InputError(f"{source.where}: {name}: got {shorten(place)}; allowed: remat, "
                             "device, offload")
    return _custom(at, source, chain, notes)


def _custom(
    at: Mapping[str, str], source: Source, chain: Chain, notes: list[str]
) -> tuple[str, tuple[str, ...], str]:
    """The same of outputs that are each somewhere."""
    there = _there(chain)
    places = {name: {at[one] for one in tensors} for name, tensors in TENSORS.items()}
    for name in ("qkv_linear", "mlp"):
        *apart, fused = TENSORS[name]
        places[name] = {at[one] for one in apart}
        if places[name] == {"remat"}:
            places[name] = {at[fused]}
    if at["moe_mlpwi_0"] == "remat":  # the first product of experts has the name of MLPs too
        places["moe"] = {at["mlpwi_0"], at["moe_mlpwi_1"]}
    kept = {name for name, found in places.items() if "remat" not in found}
    recompute, modules = _recomputed(kept, source, chain)
    moved = [name for name in there if places[name] == {"offload"}]
    outer = at[INPUT] == "offload"
    if recompute == "full":
        offload = "checkpoints" if outer else "none"
    else:
        away = _moved(moved, kept, outer, chain)
        moved = [name for name in moved if not any(
            module in away and name == whose for module, whose in _AWAY)]
        offload = "+".join(name for name in OFFLOAD_MODULES if name in away) or "none"
    again = [name for name in there if name not in kept]
    partly = [*(one for name in again for one in TENSORS[name]), *UNPRICED]
    if partly := [name for name in partly if at[name] != "remat"]:
        notes.append(f"custom: {', '.join(partly)}: priced as running again, which bounds the time "
                     "from above")
    if left := [name for module in moved for name in TENSORS[module] if at[name] == "offload"]:
        notes.append(f"custom: {', '.join(left)}: on the host, priced as kept on the device, which "
                     "bounds the memory from above")
    return recompute, modules, offload


def _moved(moved: list[str], kept: set[str], outer: bool, chain: Chain) -> set[str]:
    """Modules that move to the host, of layers whose inputs do (``outer``) or not."""
    has = {op.offloaded for kind in chain.kinds for op in kind.operators}
    assert chain.model is not None
    found = {"attn_norm" if chain.model.mla else "qkv_linear"} if outer else set()
    found |= {module for module, name in _AWAY if name in moved}
    if "core_attn" not in found and "qkv_linear" not in kept and "attn_proj" in found:
        found.add("core_attn")  # which moves nothing of what runs again
    return {name for name in found & has if name != "attn_proj" or "core_attn" in found}


def _recomputed(
    kept: set[str], source: Source, chain: Chain
) -> tuple[str, tuple[str, ...]]:
    """Recompute where the outputs of some modules are kept."""
    there = _there(chain)
    if not kept & {*there}:
        return "full", ()
    if not {*OUTPUT_MODULES} <= {*there} | kept:
        raise InputError(f"{source.where}: remat_policy: projections of attention run again, which "
                         f"has no price for {chain.name}; allowed: full, or a policy that keeps "
                         "query_proj, key_proj, value_proj and out_proj")
    return "selective", tuple(
        name for name in chain.modules_under(load_stack("maxtext"))
        if name in ("norm", "mlp_act") or name in there and name not in kept)
