"""A chain of which parts are trained: frozen operators, adapters, and where gradients end.

Of a frozen product a backward pass has the gradient of its input alone, and keeps no input for one
of its weights; what others keep stays: inputs of norms and activation functions, queries, keys,
values and the attention core's output. In front of the first layer with something to train there is
no backward pass (torch.autograd: a tensor needs a gradient where one that it is made of does). In
that first layer itself all inputs of products are taken to need one.

An adapter adds to a product y = W x of the frozen matrix W the product s B A x (LoRA,
arXiv:2106.09685, section 4.1): A keeps x, B keeps A x. Beside a column-split product A's rank and
B's width are divided, beside a row-split one A's depth and B's width, which is then gathered, and
with sequence parallelism scattered, which goes backward as a gather
(NVIDIA-NeMo/Megatron-Bridge@067f987 src/megatron/bridge/peft/utils.py:1033 to 1083, 1234 to 1246).
Collectives of the width of the rank are not priced. Each expert has an adapter of its own. Adapters
are products in 16 bit; scaling and addition are kernels of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nest.errors import InputError
from nest.inputs.model import Model
from nest.inputs.trainable import ALL_LINEAR, MEGATRON, STORED, TARGETS, LoRA, Trainable
from nest.model.chain import Chain
from nest.model.operators import EXPERT, Layer, Operator, Split, Traffic

TABLES = ("embedding_table", "logits")
"""Operators that hold a matrix of the vocabulary, which copies of it may share."""
_INPUTS = {
    "projection_input": ("query", "key_value", "query_down", "key_value_down", "mixer_input",
                         "decay", "decay_down", "beta", "gate_down", "gate"),
    "cross_input": ("cross_query",), "mlp_input": ("mlp_up",),
    "moe_input": ("router", "shared_up", "shared_gate", "latent_down"), "permute": ("expert_up",),
    "head_input": ("logits",), "mtp_head_input": ("logits",),
}
"""Operators that keep the input of products, which these need for gradients of their weights."""
_GATHERED = ("projection_input", "cross_input", "mlp_input", "moe_input", "head_input",
             "mtp_head_input")
"""Of these, the inputs that tensor parallelism gathers."""


def with_trainable(chain: Chain, model: Model) -> Chain:
    """The chain with what the model trains; as it is where that is all.

    Raises
    ------
    InputError : no layer has a target of the adapters, or nothing is trained.
    """
    trained = model.trainable
    if trained is None:
        return chain
    _check_targets(chain, model, trained)
    inputs: list[list[int]] = [[] for _ in chain.order]
    for tensor in chain.tensors:
        for consumer in tensor.consumers:
            inputs[consumer].append(tensor.producer)
    kinds: list[Layer] = []
    order: list[int] = []
    known: dict[tuple[int, bool, bool], int] = {}
    shared: dict[int, int] = {}
    passing: list[bool] = []
    made: dict[tuple[int, bool], Layer] = {}
    number = 0  # of the transformer layer
    for position, kind in enumerate(chain.order):
        layer = chain.kinds[kind]
        named = trained.layers is None or not layer.repeated or number in trained.layers
        number += layer.repeated
        if (kind, named) not in made:
            made[kind, named] = _as_trained(layer, model, trained, named)
        one = made[kind, named]
        passes = one.trained > 0 or any(passing[n] for n in inputs[position])
        passing.append(passes)
        key = kind, named, passes
        if key not in known:
            known[key] = len(kinds)
            kinds.append(replace(one, passes=passes))
            if kind in chain.shared:
                other = _as_trained(chain.kinds[chain.shared[kind]], model, trained, named)
                shared[known[key]] = len(kinds)
                kinds.append(replace(other, passes=passes))
        order.append(known[key])
    if not any(kinds[kind].trained for kind in order):
        raise InputError(f"model {model.name}: trainable.parts: got "
                         f"{', '.join(trained.parts) or 'none'}; allowed: parts with parameters; "
                         "nothing would be trained")
    return replace(chain, kinds=tuple(kinds), order=tuple(order), shared=shared)


def targets_of(chain: Chain) -> tuple[str, ...]:
    """Targets that some transformer layer of a chain has."""
    names = {op.name for kind in chain.kinds if kind.repeated for op in kind.operators}
    return tuple(target for target, (reads, _) in TARGETS.items() if names & {*reads})


def _check_targets(chain: Chain, model: Model, trained: Trainable) -> None:
    if trained.lora is None:
        return
    has = targets_of(chain)
    wrong = [name for name in trained.lora.targets if name != ALL_LINEAR and name not in has]
    if wrong or not has:
        raise InputError(f"model {model.name}: trainable.lora.targets: got "
                         f"{', '.join(wrong) or ALL_LINEAR}, which no layer has; allowed: "
                         f"{', '.join((ALL_LINEAR, *has))}")


def _as_trained(layer: Layer, model: Model, trained: Trainable, named: bool) -> Layer:
    """A layer with what is trained of it; ``named``: the layers that parts mean include it."""
    operators = [_frozen(op, layer, model, trained, named) for op in layer.operators]
    adapted: set[str] = set()
    adapters: list[Operator] = []
    rows = 0
    if trained.lora is not None and named and layer.repeated:
        for name, own in _targets(operators, trained.lora, layer):
            adapters += _adapter(name, own, trained.lora, layer)
            adapted |= {op.name for op, _ in own}
            rows += own[0][0].split == "row"
    fixed = {op.name for op in operators if op.fixed}
    dropout = trained.lora is not None and trained.lora.dropout > 0.0
    found = [_kept(op, fixed, adapted, dropout, layer) for op in operators]
    traffic = _less_gathered(layer.traffic, layer, found)
    cross = layer.cross_traffic
    if cross is not None and "cross_key_value" in fixed:
        cross = replace(cross, kept=0.0, backward_gathers=cross.backward_gathers - 1)
    if rows:
        every = traffic.forward_gathers + rows
        traffic = replace(traffic, forward_gathers=every,
                          backward_gathers=traffic.backward_gathers + rows,
                          kept=traffic.kept * traffic.forward_gathers / every)
    tables = any(op.name in TABLES and not op.fixed for op in found)
    return replace(layer, operators=(*found, *adapters), traffic=traffic, cross_traffic=cross,
                   tied_parameters=layer.tied_parameters * tables)


def _part_of(op: Operator, layer: Layer) -> str:
    """The part of :data:`nest.inputs.trainable.WHOLE` that an operator belongs to."""
    name = layer.name
    if op.name in ("embedding", "embedding_table"):
        return "embedding"
    if name.startswith(("patch_", "vision_")):
        return "vision"
    if name in ("projector", "head"):
        return name
    if name == "mtp_layer":
        return "mtp"
    return "embedding" if "embedding" in name else "layers"


def _inner_part(op: Operator) -> str:
    """The part of a transformer layer that an operator belongs to."""
    if op.type == "memory" and "norm" in op.name:
        return "norms"
    if op.name == "router":
        return op.name
    if op.name.startswith(("expert_", "shared_", "latent_")):
        return "experts"
    return "mlp" if op.name.startswith("mlp_") else "attention"


def _frozen(
    op: Operator, layer: Layer, model: Model, trained: Trainable, named: bool
) -> Operator:
    """An operator as far as it is trained."""
    part = _part_of(op, layer)
    whole = part in trained.parts or (
        part in ("layers", "mtp") and _inner_part(op) in trained.parts)
    if whole and (named or part not in ("layers", "mtp")):
        return op
    biases = _biases(op, layer, model) if "biases" in trained.parts and named else 0
    if op.type != "gemm":
        return replace(op, trained=biases) if op.parameters else op
    stored = None
    if trained.frozen_precision is not None and part in ("layers", "mtp") \
            and op.name not in TABLES:
        stored = STORED[trained.frozen_precision]
    return replace(op, fixed=True, trained=biases, stored=stored)


def _biases(op: Operator, layer: Layer, model: Model) -> int:
    """Those of its parameters that are biases."""
    if op.type != "gemm":
        return op.parameters // 2 if "norm" in op.name and model.norm_bias else 0
    count = layer.experts.count if layer.experts is not None and op.split in EXPERT else 1
    return max(0, op.parameters - count * op.width * op.depth) if op.depth else 0


def _kept(
    op: Operator, fixed: set[str], adapted: set[str], dropout: bool, layer: Layer
) -> Operator:
    """An operator without what only gradients of frozen weights need.

    What an adapter reads stays, in 16 bit; with dropout each keeps an input of its own instead.
    """
    if not op.product_input:
        return op
    readers = _INPUTS.get(op.name, (op.name,))
    if op.name == "projection_input" and not any(
            other.name == "mlp_input" for other in layer.operators):
        readers = (*readers, "mlp_up")
    present = {other.name for other in layer.operators} & {*readers}
    if not present <= fixed:
        return op
    if present & adapted and not dropout:
        return replace(op, cast_elements=None)
    if op.wide_elements:  # the attention core keeps its own output
        return replace(op, product_input=False, cast_elements=None)
    return replace(op, saved_elements=0.0, product_input=False, cast_elements=None)


def _less_gathered(t: Traffic, layer: Layer, operators: list[Operator]) -> Traffic:
    """Traffic without gathers that only gradients of frozen weights need."""
    names = [op.name for op in layer.operators]
    inputs = [name for name in names if name in _GATHERED and (
        name != "moe_input" or "shared_up" in names)]
    if not t.forward_gathers or not inputs:
        return t
    kept = sum(op.product_input for op in operators if op.name in inputs)
    share = kept / len(inputs)
    return t if share == 1.0 else replace(
        t, kept=share, backward_gathers=t.backward_gathers - t.forward_gathers * (1.0 - share))


Reads = list[tuple[Operator, float]]
_WHOLE: dict[Split, tuple[Split, Split]] = {
    "column": ("column", "sequence"), "row": ("sequence", "row"),
    "expert_column": ("expert_column", "dispatch"), "expert_row": ("dispatch", "expert_row")}
"""How an adapter's output and input are divided beside a product that is divided so."""


def _targets(
    operators: list[Operator], lora: LoRA, layer: Layer
) -> Iterator[tuple[str, Reads]]:
    """Adapters of a layer: their names, and the products beside them with the share of each."""
    names = dict.fromkeys(lora.targets)
    if ALL_LINEAR in names:
        names |= dict.fromkeys(name for name in TARGETS if name not in MEGATRON)
        del names[ALL_LINEAR]
    for name in names:
        reads, share = TARGETS[name]
        beside = [op for op in operators if op.name in reads and op.fixed]
        if name == "linear_qkv" and beside:  # one product of the module
            yield name, [(op, share) for op in beside]
            continue
        for op in beside:
            gated = op.halves or (op.split in EXPERT and layer.experts is not None
                                  and layer.experts.matrices == 3)
            if name == "gate_proj" and not gated:
                continue
            yield f"{op.name}_{name}", [(op, share if gated else 1.0)]


def _adapter(name: str, beside: Reads, lora: LoRA, layer: Layer) -> list[Operator]:
    """A, B, and the addition of their product."""
    op = beside[0][0]
    width = int(sum(share * one.width for one, share in beside))
    times = layer.experts.count if layer.experts is not None and op.split in EXPERT else 1
    divided: Split = "column" if op.split == "heads" else op.split
    out: Split = ("expert_column" if op.split in EXPERT else
                  "sequence" if op.split == "sequence" else "column")
    again = tuple(module for module in op.again if module != "products")
    saved = 1.5 * op.depth if lora.dropout else 0.0  # and a mask of 1 byte an element
    first = Operator(f"{name}_lora_a", "gemm", divided, width=lora.rank, depth=op.depth, bf16=True,
                     parameters=times * lora.rank * op.depth, saved_elements=saved, again=again,
                     dropped=again, product_input=saved > 0.0)
    second = Operator(f"{name}_lora_b", "gemm", out, width=width, depth=lora.rank, bf16=True,
                      parameters=times * width * lora.rank, saved_elements=lora.rank, again=again,
                      dropped=again, product_input=True)
    rows, back = _WHOLE.get(op.split, (out, divided))
    added = Operator(f"{name}_lora_sum", "memory", rows, forward_elements=5 * width,
                     backward_elements=2 * width, again=again)
    read = Operator(f"{name}_lora_input", "memory", back, again=again,
                    forward_elements=2.5 * op.depth if lora.dropout else 0.0,
                    backward_elements=(5.5 if lora.dropout else 3.0) * op.depth)
    return [first, second, added, read]
