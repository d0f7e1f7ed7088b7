"""Hybrids as a letter for each layer, M * - E, with ``|`` between stages.

Megatron-Core's HybridModel has layers that mix tokens or are an MLP; what has both in each layer,
such as Qwen3-Next, is a GPT model there. Sources:

NVIDIA/Megatron-LM@d98e8a6 megatron/core/models/hybrid/hybrid_layer_allocation.py:14, 331 to 383;
NVIDIA-NeMo/Megatron-Bridge@v0.6.0 src/megatron/bridge/models/hybrid/hybrid_provider.py:289.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.inputs.layers import LayerKind
from nest.inputs.model import Model
from nest.units import shorten

PATTERN = "model.hybrid_layer_pattern"
_LETTERS = {("attention", "none"): "*", ("none", "dense"): "-", ("none", "experts"): "E"}


def letters(model: Model) -> str | None:
    """One for each layer; None: it is no HybridModel."""
    kinds = {kind.name: _letter(model, kind) for kind in model.layer_kinds}
    if model.recurrence is None or not all(kinds.values()):
        return None
    return "".join(str(kinds[name]) for name in model.layer_types)


def _letter(model: Model, kind: LayerKind) -> str | None:
    if (kind.mixer, kind.mlp) == ("recurrence", "none") and model.recurrence is not None:
        return {"mamba2": "M", "gated_delta": "G"}.get(model.recurrence.form)
    return _LETTERS.get((kind.mixer, kind.mlp))


def pattern(model: Model, plan: Plan) -> str | None:
    """The letters, with a border behind each stage; None: it is no HybridModel."""
    every = letters(model)
    if every is None or plan.parallelism.vpp > 1:
        return every
    # The embedding is the first layer of the chain, and the head the last one.
    return "|".join(every[max(0, stage.layers[0] - 1):stage.layers[1] - 1]
                    for stage in plan.stages)


def inexpressible(model: Model, plan: Plan) -> Iterator[str]:
    """What a pattern cannot say."""
    if letters(model) is not None and plan.parallelism.vpp > 1:
        yield (f"vpp {plan.parallelism.vpp}: hybrids have no virtual stages in v0.6.0; allowed: 1 "
               "(--vpp 1)")


def layout(text: object, model: Model, where: str) -> str | None:
    """A pattern as the layout of GPT models; None: it has no borders.

    Raises
    ------
    InputError : it is not that of the model.
    """
    every = letters(model)
    plain = text.replace("|", "") if isinstance(text, str) else None
    if plain is None or plain != every:
        raise InputError(f"{where}: {PATTERN}: got {shorten(text)}; allowed: "
                         f"{every or 'none'}, the layers of {model.name}, with | between stages")
    assert isinstance(text, str)
    stages = text.split("|")
    if len(stages) == 1:
        return None
    written = ["t" * len(stage) for stage in stages]
    return "|".join(["E" + written[0], *written[1:-1], written[-1] + "L"])
