"""What a plan keeps in the memory of the hosts: a text such as `optimizer:0.5+core_attn`."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from nest.units import shorten

OFFLOAD_MODULES = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""Modules whose activations Megatron-Core can move to the host, with its names."""
CHECKPOINTS = "checkpoints"
"""The inputs of layers that full recompute keeps."""
ALLOWED = (
    "none, or parts joined by +: optimizer, or a share of it as optimizer:0.5; activations of N "
    "transformer layers as layers:N, or of modules of all layers: "
    f"{', '.join(OFFLOAD_MODULES)} (attn_proj with core_attn, which needs its input too); or "
    "checkpoints, the inputs that full recompute keeps")
_PART = re.compile(r"(optimizer)(?::([01]?\.?[0-9]{1,4}))?|(layers):([1-9][0-9]{0,5})|([a-z_0-9]+)")


class Offload(NamedTuple):
    """What is kept in the memory of the hosts."""

    optimizer: float = 0.0
    """Share of the optimizer's states; the host updates these parameters."""
    layers: int = 0
    """Transformer layers whose activations go there."""
    modules: tuple[str, ...] = ()
    """Modules of all layers whose activations go there, in the order of ``OFFLOAD_MODULES``."""
    checkpoints: bool = False
    """The inputs of layers that full recompute keeps go there."""

    @classmethod
    def of(cls, text: object) -> Offload:
        """Read a text; parts may have any order.

        Raises
        ------
        ValueError : an unknown part, one given twice, or parts that exclude each other.
        """
        if text == "none":
            return cls()
        parts = [_PART.fullmatch(part) for part in str(text).split("+")]
        found = {part[1] or part[3] or part[5]: part[2] or part[4] for part in parts if part}
        optimizer = float(found.pop("optimizer") or 1.0) if "optimizer" in found else 0.0
        layers = int(found.pop("layers", None) or 0)
        checkpoints = found.pop(CHECKPOINTS, "") is None
        modules = tuple(name for name in OFFLOAD_MODULES if name in found)
        read = cls(optimizer, layers, modules, checkpoints)
        if (not isinstance(text, str) or len(found) > len(modules)
                or len(parts) != (optimizer > 0.0) + (layers > 0) + len(modules) + checkpoints
                or optimizer > 1.0 or (layers > 0) + bool(modules) + checkpoints > 1
                or ("attn_proj" in modules and "core_attn" not in modules)):
            raise ValueError(f"got {shorten(text)}; allowed: {ALLOWED}")
        return read

    def __str__(self) -> str:
        share = "" if self.optimizer == 1.0 else f":{self.optimizer:g}"
        parts = [f"optimizer{share}"] if self.optimizer else []
        parts += [f"layers:{self.layers}"] if self.layers else []
        parts += [CHECKPOINTS] if self.checkpoints else []
        return "+".join((*parts, *self.modules)) or "none"

    @property
    def activations(self) -> bool:
        """Whether activations go to the host."""
        return bool(self.layers or self.modules or self.checkpoints)

    @property
    def needs(self) -> dict[str, tuple[Any, ...]]:
        """Values that other dimensions may have with it.

        Megatron-Core moves activations of layers without pipeline and recompute alone; full
        recompute leaves no activations of modules to move.
        """
        if self.checkpoints:
            return {"recompute": ("full",)}
        if self.layers:
            return {"pp": (1,), "recompute": ("none",)}
        return {"recompute": ("none", "selective")} if self.modules else {}


OffloadText = Annotated[str, BeforeValidator(lambda value: str(Offload.of(value)))]
"""The text of an :class:`Offload`, in one form."""
