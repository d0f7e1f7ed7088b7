"""The layers of a model as the search sees them: in order, with the tensors between them.

Most models are plain chains, each layer feeding the next. Others branch; a cut is then a *downset*,
a set of layers that contains all inputs of its layers. Downsets and stages are bitmasks: bit n
stands for layer n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from nest.errors import LimitError
from nest.inputs.job import Job, Stack
from nest.inputs.layers import MoE
from nest.inputs.lengths import token_shares
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.model.operators import (
    EXPERT,
    FURTHER_MODULES,
    LATENT_MODULES,
    MODULES,
    OUTPUT_MODULES,
    Layer,
    Operator,
)

MOST_CUTS = 1024
"""Declared limit of the cuts of a graph with branches (chosen: stages are pairs of cuts)."""


@dataclass(frozen=True)
class Tensor:
    """The output of a layer; its size follows from the layer, see :func:`tensor_bytes`."""

    producer: int
    consumers: tuple[int, ...]
    kept: bool = True
    """Its consumers keep it for the backward, among the elements that their layers save."""
    copies: int = 1
    """Hidden states that travel together (multi-token prediction)."""

    @cached_property
    def mask(self) -> int:
        """The consumers as bits."""
        return sum(1 << consumer for consumer in self.consumers)


@dataclass(frozen=True)
class Chain:
    """Layers in topological order; layers that repeat share one *kind*."""

    name: str
    kinds: tuple[Layer, ...]
    order: tuple[int, ...]
    """Kind of the layer at each position."""
    tensors: tuple[Tensor, ...]
    """By producer; a layer without consumers has none."""
    shared: dict[int, int] = field(default_factory=dict, hash=False)
    """Kind to use instead when one stage holds everything (tied embeddings held once)."""
    model: Model | None = None
    profile: Profile | None = None

    def __len__(self) -> int:
        return len(self.order)

    def stage(self, members: Sequence[int]) -> tuple[int, ...]:
        """Kinds of the layers with these numbers, ascending, when they form one stage."""
        kinds = tuple(self.order[number] for number in members)
        if len(kinds) == len(self.order):
            return tuple(self.shared.get(kind, kind) for kind in kinds)
        return kinds

    @cached_property
    def parameters(self) -> float:
        """Of all layers."""
        return float(sum(self.kinds[kind].parameters for kind in self.order))

    @cached_property
    def is_chain(self) -> bool:
        """Every layer feeds the next one, and no other."""
        return len(self.tensors) == len(self) - 1 and all(
            tensor.consumers == (tensor.producer + 1,) for tensor in self.tensors)

    @cached_property
    def body(self) -> tuple[int, int]:
        """Layers [i, j) that even cuts divide.

        In a model these reach from its first to its last transformer layer, in a profile from the
        first to the last layer that repeats; without repetition they are all layers.
        """
        if self.profile is None:
            marks = [n for n, kind in enumerate(self.order) if self.kinds[kind].repeated]
        else:
            times = Counter(self.order)
            marks = [n for n, kind in enumerate(self.order) if times[kind] > 1]
        return (marks[0], marks[-1] + 1) if marks else (0, len(self))

    @cached_property
    def repeated(self) -> int:
        """Number of transformer layers of the model; 0 for a profile."""
        return sum(self.kinds[kind].repeated for kind in self.order)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Modules of selective recompute that some layer has."""
        found = {name for kind in self.kinds if kind.checkpointed for name in kind.modules}
        return tuple(name for name in MODULES if name in found)

    @cached_property
    def further_modules(self) -> tuple[str, ...]:
        """The same of the further ones."""
        found = {name for kind in self.kinds if kind.checkpointed for name in kind.further_modules}
        return tuple(name for name in FURTHER_MODULES if name in found)

    def modules_under(self, stack: Stack) -> tuple[str, ...]:
        """All modules that some layer has under a stack, in the order of plans."""
        outputs = {name for kind in self.kinds if kind.checkpointed for name in kind.output_modules}
        return (*self.modules, *self.further_modules, *(
            name for name in OUTPUT_MODULES if stack.saves_outputs and name in outputs))

    def sets_under(self, stack: Stack) -> tuple[tuple[str, ...], ...]:
        """Sets of modules that a search tries under a stack, if the space names none.

        Where outputs are named, those of norms and activation functions are not, so that what
        attention projects runs again beside these. All modules together are full recompute.
        """
        every = self.modules_under(stack)
        free = [name for name in ("core_attn", "moe", "mlp", *OUTPUT_MODULES) if name in every]
        return (*self.module_sets, *(
            tuple(name for name in every if name in {"norm", "mlp_act", *kept})
            for count in range(1, len(free)) for kept in combinations(free, count)
            if {*OUTPUT_MODULES} & {*kept}))

    @cached_property
    def module_groups(self) -> tuple[tuple[str, ...], ...]:
        """Modules of which a search tries all sets, if the space names none.

        All there are; where some layer has latent attention, and so most modules, two groups.
        """
        every = (*self.modules, *self.further_modules)
        if "mla_up_proj" not in every:
            return (every,)
        return self.modules, tuple(name for name in LATENT_MODULES if name in every)

    @cached_property
    def module_sets(self) -> tuple[tuple[str, ...], ...]:
        """Sets of modules that a search tries, if the space names none.

        Recompute of ``moe`` includes shared experts: naming them too changes nothing.
        """
        return tuple(dict.fromkeys(
            modules for every in self.module_groups for count in range(1, len(every) + 1)
            for modules in combinations(every, count)
            if not {"moe", "shared_experts"} <= {*modules}))

    @property
    def experts(self) -> MoE | None:
        """The mixture of experts of the model; ``None``: no layer has experts."""
        return self.model.moe if self.model is not None else None

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """Numbers of key-value heads, each once; none for a profile."""
        return tuple(dict.fromkeys(
            op.kv_groups for kind in self.kinds for op in kind.operators
            if op.type == "attention"))

    @cached_property
    def tensor_widths(self) -> tuple[tuple[str, int], ...]:
        """Widths that the tensor-parallel degree must divide, by name; none for a profile."""
        model = self.model
        if model is None:
            return ()
        kinds, r = model.kinds, model.recurrence
        sized = [model.sized(kind) for kind in kinds]
        found = [("heads", own.heads) for kind, own in zip(kinds, sized, strict=True)
                 if kind.attends]
        found += [("ffn", own.ffn) for kind, own in zip(kinds, sized, strict=True)
                  if kind.mlp == "dense"]
        if r is not None:
            found += [("recurrence.heads", r.heads), ("recurrence.groups", r.groups)]
        if model.compression is not None:
            found.append(("compression.groups", model.compression.groups))
        if model.moe is not None and model.moe.shared_ffn:
            found.append(("shared_ffn", model.moe.shared_ffn))
        if model.vision is not None:
            found += [("vision.heads", model.vision.heads), ("vision.ffn", model.vision.ffn)]
        return tuple(dict.fromkeys(found))

    @cached_property
    def mixers(self) -> frozenset[str]:
        """How its layers mix tokens: attention, sparse attention, or the form of a state."""
        model = self.model
        if model is None:
            return frozenset()
        found: set[str] = {"attention" for kind in model.kinds if kind.attends}
        if model.recurrence is not None:
            found.add(model.recurrence.form)
        if model.compression is not None:
            found.add("compressed attention")
        elif model.selects is not None:
            found.add("sparse attention")
        return frozenset(found)

    @cached_property
    def unlisted(self) -> tuple[str, ...]:
        """What of its layers the tables of stacks do not cover, in words."""
        model = self.model
        if model is None:
            return ()
        kinds = tuple(model.kinds)
        found = dict.fromkeys(sorted(self.mixers - {"attention"}), True)
        found |= {
            "chunked attention": any(kind.chunked for kind in kinds),
            "parallel blocks": model.parallel or any(kind.mixer == "both" for kind in kinds),
            "latent experts": model.moe is not None and model.moe.latent > 0,
            "mixed residuals": model.streams > 1 or model.residual_block > 0,
            "inputs of each layer": model.layer_inputs > 0,
            "shared keys": model.keys_shared,
            "layers of one part": any(kind.parts < 2 for kind in kinds),
            "layers of unequal sizes": any(model.sized(kind) is not model for kind in kinds),
            "an encoder of images": model.patch_width > 0,
        }
        return tuple(name for name, has in found.items() if has)

    def lengths(self, seq_len: int) -> tuple[int, ...]:
        """Tokens per sample of all layers, each number once; ``seq_len`` is the job's."""
        return tuple(dict.fromkeys(kind.tokens or seq_len for kind in self.kinds))

    def downsets(self) -> tuple[int, ...]:
        """Bitmasks of all downsets, ascending by number of layers, then by value.

        Raises
        ------
        LimitError : layers side by side allow more than ``MOST_CUTS`` cuts.
        """
        return self._downsets

    @cached_property
    def _downsets(self) -> tuple[int, ...]:
        if self.is_chain:
            return tuple((1 << size) - 1 for size in range(len(self) + 1))
        if len(self) >= MOST_CUTS:
            raise self._too_many(f"has {len(self)} layers with branches")
        needs = [0] * len(self)
        for tensor in self.tensors:
            for consumer in tensor.consumers:
                needs[consumer] |= 1 << tensor.producer
        found, level, widest = [0], [0], 1
        for _ in range(len(self)):
            larger: set[int] = set()
            for mask in level:
                ready = [n for n, need in enumerate(needs)
                         if not (mask >> n & 1 or need & ~mask)]
                widest = max(widest, len(ready))
                larger.update(mask | 1 << n for n in ready)
                if len(found) + len(larger) > MOST_CUTS:
                    raise self._too_many(
                        f"has {len(self)} layers, up to {widest} of them side by side")
            level = sorted(larger)
            found += level
        return tuple(found)

    def _too_many(self, what: str) -> LimitError:
        return LimitError(
            f"{self.name}: {what}: more than {MOST_CUTS} ways to cut it in two; allowed: "
            f"{MOST_CUTS}. Describe layers that run side by side as one layer, or several "
            "consecutive layers of a branch as one")

    @cached_property
    def _crossings(self) -> dict[int, tuple[Tensor, ...]]:
        return {}

    def crossing(self, before: int) -> tuple[Tensor, ...]:
        """Tensors that cross the cut after the layers ``before``, a bitmask."""
        if self.is_chain:
            last = before.bit_length() - 1
            return self.tensors[last:last + 1] if last >= 0 else ()
        if before not in self._crossings:
            self._crossings[before] = tuple(
                tensor for tensor in self.tensors
                if before >> tensor.producer & 1 and tensor.mask & ~before)
        return self._crossings[before]


def tensor_bytes(chain: Chain, job: Job, tensor: Tensor) -> float:
    """Bytes per sample of a tensor."""
    layer = chain.kinds[chain.order[tensor.producer]]
    if layer.output_bytes is not None:
        return layer.output_bytes
    element = 4 if job.precision == "fp32" else 2
    return float(tensor.copies * (layer.tokens or job.seq_len) * layer.hidden * element)


def boundary_bytes(chain: Chain, job: Job, before: int) -> float:
    """Bytes per sample that cross the cut after the layers ``before``, each tensor once.

    Parameters
    ----------
    before : bitmask of the layers before the cut, a downset.
    """
    return sum((tensor_bytes(chain, job, t) for t in chain.crossing(before)), 0.0)


def relay_bytes(chain: Chain, job: Job, before: int, after: int) -> float:
    """Bytes per sample that arrive at a stage and that none of its layers saves.

    The stage holds them for every micro-batch in flight: tensors that it passes on to later stages,
    and tensors that its layers read without saving. A plain chain has none.

    Parameters
    ----------
    before, after : bitmasks, downsets; the stage holds the layers of ``after`` not in ``before``.
    """
    if chain.is_chain:
        return 0.0
    inside = after & ~before
    return sum((tensor_bytes(chain, job, t) for t in chain.crossing(before)
                if not (t.kept and t.mask & inside)), 0.0)


def spans(op: Operator, layer: Layer, seq_len: int, samples: Mapping[int, float] | None
          ) -> tuple[tuple[float, float], ...]:
    """Positions that attention of a query stays within, with the share of queries each.

    Those of the layer, or of the samples (``samples``: shares by length) that fill its sequences:
    of all tokens, l n(l) / sum of l n(l) are in samples of length l, of which there are n(l).
    Layers and keys with a number of positions of their own, such as images, do not consist of them.
    """
    if samples is None or layer.tokens or op.positions:
        return ((float(op.positions or layer.tokens or seq_len), 1.0),)
    return tuple((float(length), share) for length, share in token_shares(samples))


def model_flop(
    chain: Chain, seq_len: int, samples: Mapping[int, float] | None = None
) -> float:
    """FLOP of the model for one sequence, forward and backward, without recompute.

    Three times the forward matrix products: the product, the gradient of its input and that of its
    weights, which a frozen one lacks; a layer through which no gradient passes has the first alone.
    Attention counts the positions it needs: half of them if it is causal, fewer within a window. Of
    the experts, those that a token uses count. Layers of multi-token prediction count, as part of
    the training. 0 for a profile, which has no FLOP. ``samples``: see :func:`spans`.
    """
    return sum(sum(_operator_flop(chain.kinds[kind], seq_len, samples)) for kind in chain.order)


def _operator_flop(
    layer: Layer, seq_len: int, samples: Mapping[int, float] | None
) -> Iterator[float]:
    tokens = layer.tokens or seq_len
    for op in layer.operators:
        positions = op.positions or tokens
        times = (3.0 - op.fixed) if layer.passes else 1.0
        if op.type == "gemm":
            copies = layer.experts.top_k if layer.experts and op.split in EXPERT else 1
            yield times * 2.0 * positions * op.width * op.depth * copies
        elif op.type == "attention":
            keys = sum(share * one * op.seen(one)
                       for one, share in spans(op, layer, seq_len, samples))
            yield times * 2.0 * tokens * op.attention_width * keys
        elif op.type == "scan":
            yield times * 2.0 * tokens * op.attention_width
