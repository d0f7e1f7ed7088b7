"""Random models and measured layers for the instances."""

from __future__ import annotations

from random import Random
from typing import Any

from instances_hardware import log_uniform

from nest.inputs import Model, Profile

FAMILIES = ("encoder-decoder", "vision", "prediction")
KINDS = ("dense", "gqa", "moe", "mla", "encoder", "shared")


def random_model(rng: Random, kind: str, theme: str) -> Model:
    """A small transformer."""
    layers = rng.choice((1, 2, 3, 4, 5, 8) if theme in ("any", "pipeline") else (1, 2, 3, 4, 5))
    if theme == "chunks":
        layers = rng.choice((4, 4, 6, 6, 8, 9))
    elif theme in ("long", "outer"):
        layers = rng.choice((1, 2, 3))
    heads = rng.choice((2, 4, 6, 8, 12, 15))
    head_dim = rng.choice((16, 32, 64))
    data: dict[str, Any] = {
        "name": f"random {kind}", "layers": layers, "heads": heads, "head_dim": head_dim,
        "hidden": heads * head_dim * rng.choice((1, 1, 2)), "gated": rng.random() < 0.5,
        "ffn": 60 * rng.choice((2, 8, 16, 40)), "vocab": rng.choice((500, 4001, 32000)),
        "tied_embeddings": rng.random() < 0.4, "norm": rng.choice(("rmsnorm", "layernorm")),
        "bias": False,
    }
    if theme == "chunks":
        data["vocab"] = rng.choice((100, 500, 4001))
    if kind in ("dense", "gqa", "moe"):
        data["kv_heads"] = rng.choice([d for d in range(1, heads + 1) if heads % d == 0])
        data["qk_norm"] = rng.random() < 0.3
    if kind == "mla":
        data["mla"] = {"q_rank": rng.choice((0, 48)), "kv_rank": 32, "nope_dim": head_dim,
                       "rope_dim": 8, "value_dim": head_dim}
        del data["head_dim"]
    if kind == "encoder":
        data |= {"kind": "encoder", "positions": 40000, "token_types": 2, "embedding_norm": True,
                 "bias": True, "head_transform": True, "head_bias": True, "pooler": True}
    if kind in ("moe", "shared"):
        experts = rng.choice((2, 3, 4, 6, 8))
        data["moe"] = {"experts": experts, "top_k": rng.randint(1, min(3, experts)),
                       "ffn": 60 * rng.choice((1, 4, 16)), "every": 1 + (layers > 2)}
        if theme in ("experts", "chunks"):
            data["moe"]["every"] = 1
    if kind == "shared":
        data["moe"] |= {"shared_ffn": 60 * rng.choice((1, 4)), "every": 1,
                        "shared_gate": rng.random() < 0.5, "first_dense": int(layers > 1)}
    own = Random(repr(data))  # drawn apart, so that all else stays as it was without windows
    if kind != "encoder" and own.random() < 0.3:
        data["window"] = own.choice((1, 24, 100, 10**6))
        data["full_layers"] = [n for n in range(layers) if own.random() < 0.4]
    elif kind in ("dense", "gqa") and layers > 1:
        data |= random_recurrence(data, 0.8 if theme in ("long", "outer") else 0.3)
    return Model(**data, trainable=random_trainable(data))


def random_recurrence(data: dict[str, Any], chance: float) -> dict[str, Any]:
    """Layers with a state in some models, between those with attention."""
    rng = Random(f"recurrence {data!r}")  # drawn apart, as windows
    if rng.random() >= chance:
        return {}
    heads, form = rng.choice((2, 4, 6, 8)), rng.choice(("gated_delta", "mamba2", "kimi_delta"))
    groups = heads if form == "kimi_delta" else rng.choice(
        [d for d in range(1, heads + 1) if heads % d == 0])
    return {
        "recurrence": {"form": form, "heads": heads, "head_dim": rng.choice((16, 64)),
                       "groups": groups, "state": rng.choice((16, 64)), "conv": 4},
        "layer_kinds": [{"name": "a"}, {
            "name": "r", "mixer": "recurrence", "mlp": rng.choice(("dense", "none"))}],
        "layer_types": ["a", *rng.choices("ar", k=data["layers"] - 2), "r"],
    }


def random_trainable(data: dict[str, Any]) -> dict[str, Any] | None:
    """What is trained of a third of the models; the others are trained whole."""
    rng = Random(f"trainable {data!r}")  # drawn apart, as windows
    if rng.random() < 0.67:
        return None
    last = rng.randrange(data["layers"])
    named = rng.choice((None, f"{last}..{data['layers'] - 1}"))
    tables = rng.choice(([], ["embedding", "head"]))
    if rng.random() < 0.5:
        targets = rng.choice(("all-linear", "linear_fc2", "o_proj,down_proj"))
        return {"lora": {"rank": rng.choice((2, 8)), "targets": targets,
                         "dropout": rng.choice((0, 0.1))},
                "parts": tables, "layers": named,
                "frozen_precision": rng.choice((None, "nf4", "int8"))}
    parts = rng.choice((["layers"], ["norms"], ["attention"],
                        ["biases"] if data["bias"] or data["norm"] == "layernorm" else ["head"]))
    if "head" in parts and data["tied_embeddings"]:
        parts = ["embedding", "head"]
    return {"parts": sorted({*parts, *tables}), "layers": named,
            "frozen_precision": rng.choice((None, "fp8", "fp32"))}


def random_profile(rng: Random, theme: str) -> Profile:
    """Measured layers that differ by up to an order of magnitude."""
    length = rng.choice((1, 2, 3, 4, 5, 6, 7, 7))
    degrees = [d for d in (1, 2, 3, 4, 5, 8) if d == 1 or rng.random() < 0.45]
    if theme == "close":
        length, degrees = rng.choice((3, 4, 5)), [1, 2, 3, 4]
    elif theme == "chunks":
        length = rng.choice((4, 6, 8))
    elif theme == "graph":
        length = rng.choice((3, 4, 5, 6, 7, 8))
    if rng.random() < 0.05:
        degrees = [2, 4]
    # Whole milliseconds, or 4 ms in all whatever the degree: many ways take equally long.
    coarse = rng.choice(("whole", "even") if theme == "close" else ("no", "no", "whole", "even"))
    # At times large hand-overs and few parameters, so that lanes decide.
    handed = rng.choice((1.0, 1.0, 20.0))
    layers: list[dict[str, Any]] = []
    left = length
    while left:
        repeat = rng.randint(1, min(left, 3)) if rng.random() < 0.3 else 1
        if theme in ("chunks", "graph"):
            repeat = length if theme == "chunks" else 1
        left -= repeat
        tp = {}
        forward, ratio = log_uniform(rng, 2e-4, 4e-3), rng.uniform(1.0, 3.0)
        held, kept = log_uniform(rng, 1e7, 1e9) / handed**2, log_uniform(rng, 1e6, 1e9)
        for d in degrees:
            ahead = forward / d ** rng.uniform(0.4, 1.0)
            back = forward * ratio / d ** rng.uniform(0.4, 1.0)
            if coarse == "whole":
                ahead, back = 1e-3 * rng.randint(1, 3), 1e-3 * rng.randint(1, 4)
            elif coarse == "even":
                ahead = 1e-3 * rng.randint(1, 3) / d
                back = 4e-3 / d - ahead
            tp[d] = {
                "forward": ahead, "backward": back, "parameter_bytes": held / d,
                "activation_bytes": kept / d,
                "work_bytes": rng.choice((0.0, 0.3, 2.0)) * kept / d,
            }
        if len(layers) == 1 and rng.random() < 0.3:
            tp[6] = dict(tp[degrees[0]])  # a degree that the other layers lack
        layers.append({"name": f"layer {len(layers)}", "repeat": repeat, "tp": tp,
                       "output_bytes": handed * log_uniform(rng, 1e5, 1e8)})
    if theme == "graph":
        branches(rng, layers)
    return Profile(name="random profile", bytes_per_parameter=rng.choice((2, 4)), layers=layers)


def branches(rng: Random, layers: list[dict[str, Any]]) -> None:
    """Make a graph with branches of measured layers: each names those it takes its input from."""
    names = [layer["name"] for layer in layers]
    inputs = [[name] for name in ["", *names[:-1]]]
    inputs[0] = []
    shape = rng.choice(("skips", "towers", "diamond", "ends", "any"))
    last = len(names) - 1
    if shape == "skips":
        for n in range(2, last + 1):
            if rng.random() < 0.4:
                inputs[n].append(names[rng.randrange(n - 1)])
    elif shape == "towers":
        # Two towers that start by themselves and join.
        second = rng.randint(1, last - 1)
        join = rng.randint(second + 1, last)
        inputs[second] = []
        inputs[join].append(names[second - 1])
    elif shape == "diamond":
        # Two arms from one layer to another, one of which may be empty.
        fork = rng.randrange(last - 1)
        join = rng.randint(fork + 2, last)
        second = rng.randint(fork + 1, join - 1)
        inputs[second] = [names[fork]]
        if names[second - 1] not in inputs[join]:
            inputs[join].append(names[second - 1])
    elif shape == "ends":
        # A layer whose output nobody takes: a second loss.
        end = rng.randint(1, last - 1)
        inputs[end + 1] = [names[end - 1]]
    else:
        for n in range(1, last + 1):
            inputs[n] = sorted(rng.sample(names[:n], min(n, rng.choice((0, 1, 1, 1, 2)))))
    for layer, given in zip(layers, inputs, strict=True):
        layer["inputs"] = given


def random_family(rng: Random, kind: str, theme: str) -> Model:
    """An encoder-decoder, a model with a tower for images, or multi-token prediction."""
    base = rng.choice(("dense", "gqa", "moe") if kind != "encoder-decoder" else ("dense", "gqa"))
    data = random_model(rng, base, theme).model_dump(exclude_unset=True, exclude={"trainable"})
    data |= {"name": f"random {kind}", "layers": rng.choice((1, 2, 2, 3))}
    for name in ("window", "full_layers", "recurrence", "layer_kinds", "layer_types"):
        data.pop(name, None)
    if "moe" in data:
        data["moe"] |= {"every": 1}
    if kind == "encoder-decoder":
        data |= {"kind": kind, "encoder_layers": rng.choice((1, 2)),
                 "relative_positions": rng.choice((0, 32)),
                 "encoder_seq_len": rng.choice((None, 64, 480))}
    elif kind == "vision":
        heads, merge = rng.choice((2, 4, 6)), rng.choice((1, 4))
        data["vision"] = {
            "layers": rng.choice((1, 2, 2)), "heads": heads, "hidden": 32 * heads,
            "ffn": 60 * rng.choice((2, 8)), "tokens": merge * rng.choice((16, 60)),
            "merge": merge, "patch_width": 588, "gated": rng.random() < 0.3,
            "class_token": rng.random() < 0.3, "projector_layers": rng.choice((1, 2)),
        }
        own = Random(f"tower {data!r}")
        if own.random() < 0.5:  # a frozen tower, or all but the projector
            rest = own.choice((["embedding", "layers", "head"], []))
            data["trainable"] = {"parts": ["projector", *rest]}
    else:
        layers = (4, 4, 6) if theme == "chunks" else (2, 3, 4)
        data |= {"mtp_layers": rng.choice((1, 1, 2)), "layers": rng.choice(layers)}
    return Model(**data)
