"""What of a model is trained: parts of it, adapters, or biases; the rest is frozen."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from nest.inputs.base import Description, Problems, Share, Whole, at_most
from nest.inputs.space import Ints
from nest.units import shorten

Part = Literal["embedding", "layers", "head", "mtp", "vision", "projector", "attention", "mlp",
               "experts", "router", "norms", "biases"]
PARTS: tuple[Part, ...] = get_args(Part)
WHOLE: tuple[Part, ...] = PARTS[:6]
"""Parts that are layers; the others are operators of transformer layers."""

Reads = tuple[tuple[str, ...], float]
TARGETS: MappingProxyType[str, Reads] = MappingProxyType({
    "linear_qkv": (("query", "key_value"), 1.0),
    "linear_proj": (("attention_output",), 1.0),
    "linear_fc1": (("mlp_up", "shared_up", "expert_up"), 1.0),
    "linear_fc2": (("mlp_down", "shared_down", "expert_down"), 1.0),
    "linear_q_proj": (("query",), 1.0),
    "linear_q_down_proj": (("query_down",), 1.0), "linear_q_up_proj": (("query_up",), 1.0),
    "linear_kv_down_proj": (("key_value_down",), 1.0),
    "linear_kv_up_proj": (("key_value_up",), 1.0),
    "q_proj": (("query",), 1.0), "k_proj": (("key_value",), 0.5), "v_proj": (("key_value",), 0.5),
    "o_proj": (("attention_output",), 1.0),
    "gate_proj": (("mlp_up", "shared_up", "expert_up"), 0.5),
    "up_proj": (("mlp_up", "shared_up", "expert_up"), 0.5),
    "down_proj": (("mlp_down", "shared_down", "expert_down"), 1.0),
    "q_a_proj": (("query_down",), 1.0), "q_b_proj": (("query_up",), 1.0),
    "kv_a_proj_with_mqa": (("key_value_down",), 1.0), "kv_b_proj": (("key_value_up",), 1.0),
})
"""By the name of a module the operators that an adapter of it reads beside, and the share of their
width: of Megatron-Core (linear_qkv is one product) and of Hugging Face's transformers.

NVIDIA-NeMo/Megatron-Bridge@067f987 src/megatron/bridge/peft/lora.py:80 (target_modules);
huggingface/transformers v5.23.0, modeling files of Llama and DeepSeek-V3.
"""
MEGATRON = tuple(name for name in TARGETS if name.startswith("linear_"))
ALL_LINEAR = "all-linear"

Frozen = Literal["nf4", "fp4", "int8", "fp8", "bf16", "fp32"]
STORED: MappingProxyType[str, float] = MappingProxyType({
    "nf4": 4.127 / 8.0, "fp4": 4.127 / 8.0, "int8": 1.0, "fp8": 1.0, "bf16": 2.0, "fp32": 4.0})
"""Bytes of a parameter of products that is kept so; 4 bits with doubly quantised scales of blocks
(QLoRA, arXiv:2305.14314, section 3: 0.127 bits a parameter)."""


PACKED = ("nf4", "fp4", "int8")
"""Formats of bitsandbytes."""


def _listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class LoRA(Description):
    """Low-rank adapters beside frozen products (arXiv:2106.09685, section 4.1)."""

    rank: Annotated[Whole, Field(ge=1, le=10**5)] = Field(description="rank of each adapter")
    targets: Annotated[tuple[str, ...], BeforeValidator(_listed), at_most(50)] = Field(
        (ALL_LINEAR,), description="modules of transformer layers with an adapter: all-linear, or "
        f"some of {', '.join(TARGETS)}",
    )
    dropout: Share = Field(
        0.0, description="share of the inputs of adapters that are dropped; above 0 each adapter "
        "keeps an input of its own",
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.targets or ("",):
            if name != ALL_LINEAR and name not in TARGETS:
                raise Problems([("targets", f"got {shorten(name)}; allowed: {ALL_LINEAR}, "
                                 f"{', '.join(TARGETS)}")])
        return self


class Trainable(Description):
    """What is trained; all else is frozen: no gradients, no optimizer states, no reduction."""

    parts: Annotated[tuple[Part, ...], BeforeValidator(_listed), at_most(len(PARTS))] = Field(
        (), description="parts that are trained whole: embedding, layers (transformer layers), "
        "head, mtp, vision (the tower), projector; or, of transformer layers, attention, mlp, "
        "experts, router, norms; biases (BitFit): all biases of the model",
    )
    layers: Ints = Field(
        None, description="transformer layers, from 0, such as 16..31, that parts of them and "
        "adapters mean; null: all",
    )
    lora: LoRA | None = Field(None, description="adapters; null: none")
    frozen_precision: Frozen | None = Field(
        None, description="number format in which frozen products of transformer layers are kept; "
        "they are converted in front of each product (QLoRA: nf4); null: as products take them",
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.parts and self.lora is None:
            raise Problems([("parts", "missing; needed: parts that are trained, or lora")])
        return self
