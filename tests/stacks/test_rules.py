"""What a stack cannot run: each kind of rule by hand, and every stack of the catalog."""

from __future__ import annotations

import re
from typing import Any

import pytest

import nest
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.frameworks.megatron.write import arguments, options
from nest.inputs import catalog, load_stack
from nest.inputs.capabilities import load_capabilities
from nest.model import build_chain
from nest.model.layouts import layout_of
from nest.stacks import launch_needs, not_runnable, offload_settings

MODELS = {name: nest.load_model(name) for name in (
    "llama3-70b", "deepseek-v3", "mixtral-8x7b", "t5-11b", "llava1.5-7b", "gpt2-xl")}
CLUSTER = nest.load_cluster("dgx-h100", devices=256)
STACKS = tuple(name for name in catalog.names("stacks")
               if (known := load_stack(name).capabilities) is not None and known.rules)


def job_of(stack: Any, **given: Any) -> nest.Job:
    return nest.Job(**{"global_batch": 256, "seq_len": 1024, "stack": stack, **given})


def configured(job: nest.Job, model: str, **given: Any) -> nest.Configuration:
    return even_configuration(MODELS[model], CLUSTER, job, **given)


def findings(
    stack: Any, model: str = "llama3-70b", precision: str = "bf16", **given: Any
) -> dict[str, str]:
    """Sentences by rule and field."""
    job = job_of(stack, precision=precision)
    found = not_runnable(build_chain(MODELS[model]), job, configured(job, model, **given))
    return {f"{one.rule} {one.field}": one.sentence for one in found}


def with_rule(**rule: Any) -> dict[str, Any]:
    """A stack with one rule."""
    own = {"software": "Mine", "version": "1", "rules": {"only": {
        "sentence": "because", "source": "here", **rule}}}
    return {"base": "megatron-core", "capabilities": own}


def cut(job: nest.Job, sizes: list[int], tp: list[int] | None = None) -> nest.Configuration:
    """A pipeline of llama3-70b with these layers a stage, embedding and head counted."""
    stages, layer, device = [], 0, 0
    for size, degree in zip(sizes, tp or [1] * len(sizes), strict=True):
        stages.append({"layers": (layer, layer + size), "devices": (device, device + degree),
                       "tp": degree})
        layer, device = layer + size, device + degree
    return nest.Configuration.parse({"micro_batch": 1, "stages": stages})


# ---------------------------------------------------------------- kinds of rules


def test_allowed_values() -> None:
    rule = with_rule(fields="zero", allowed="0,1", when={"pp": "2.."})
    assert findings(rule, pp=4, zero=1) == {}
    assert findings(rule, zero=3) == {}, "the condition does not hold"
    assert findings(rule, pp=4, zero=3) == {"only zero": "zero 3: because; allowed: 0..1"}


def test_allowed_words_of_several() -> None:
    rule = with_rule(fields="recompute_modules", allowed=["core_attn", "moe"])
    assert findings(rule) == {}
    assert findings(rule, recompute="selective") == {}
    both = findings(rule, recompute="selective", recompute_modules=("core_attn", "norm"))
    assert both == {
        "only recompute_modules": "recompute_modules norm: because; allowed: core_attn, moe"}
    together = with_rule(fields="module_set", allowed="norm+mlp_act")
    assert findings(together) == {}, "nothing is recomputed"
    assert findings(together, recompute="selective", recompute_modules=("norm", "mlp_act")) == {}
    assert findings(together, recompute="selective") == {}, "the stack's own are the default"
    assert findings(together, recompute="selective", recompute_modules=("core_attn",)) == {
        "only module_set": "module_set core_attn: because; allowed: norm+mlp_act"}


def test_alike() -> None:
    job = job_of(with_rule(fields=["tp", "sp"], alike=True))
    chain = build_chain(MODELS["llama3-70b"])
    assert not_runnable(chain, job, cut(job, [41, 41], [2, 2])) == ()
    unlike = not_runnable(chain, job, cut(job, [20, 21, 41], [2, 2, 1]))
    assert [one.sentence for one in unlike] == [
        "tp differs between stages (2 in stages 0..1, 1 in stage 2): because",
        "sp differs between stages (yes in stages 0..1, no in stage 2): because"]
    assert [(one.field, one.rule, one.source) for one in unlike] == [
        ("tp", "only", "here"), ("sp", "only", "here")]


@pytest.mark.parametrize(("rule", "sentence"), [
    ({"multiple_of": "pp"}, None),
    ({"multiple_of": "recompute_layers"}, "micro_batches 32 is no multiple of recompute_layers 0: "
     "because"),
    ({"multiple_of": "3"}, "micro_batches 32 is no multiple of 3: because"),
    ({"multiple_of": "3 x pp"}, "micro_batches 32 is no multiple of 3 x pp = 12: because"),
    ({"at_least": "8 x pp"}, None),
    ({"at_least": "9 x pp"}, "micro_batches 32 is below 9 x pp = 36: because"),
    ({"equal_to": "tp x pp"}, None),
    ({"equal_to": "pp"}, "micro_batches 32 is not pp 4: because"),
])
def test_products(rule: dict[str, str], sentence: str | None) -> None:
    found = findings(with_rule(fields="micro_batches", **rule), tp=8, pp=4)
    assert list(found.values()) == ([] if sentence is None else [sentence])


def test_stages_that_break_a_rule_are_named() -> None:
    job = job_of(with_rule(fields="tp", allowed=1))
    chain = build_chain(MODELS["llama3-70b"])
    found, = not_runnable(chain, job, cut(job, [20, 20, 20, 22], [1, 2, 4, 1]))
    assert found.sentence == "tp 2, 4 in stages 1..2: because; allowed: 1"


# layers of the stages with embedding and head, forms of cuts that fit
DIVISIONS = [
    ([41, 41], "even front whole back ends"),  # 40, 40
    ([42, 40], "ends"),  # 41, 39
    ([28, 27, 27], "front whole ends"),  # 27, 27, 26
    ([27, 27, 28], "back ends"),  # 26, 27, 27
    ([27, 28, 27], "ends"),  # 26, 28, 26
    ([20, 21, 22, 19], ""),  # 19, 21, 22, 18
    ([81, 0, 1], "ends"),  # 80, 0, 0
]


@pytest.mark.parametrize(("sizes", "forms"), DIVISIONS, ids=str)
@pytest.mark.parametrize("form", ["even", "front", "whole", "back", "ends", "free"])
def test_forms_of_cuts(sizes: list[int], forms: str, form: str) -> None:
    job = job_of(with_rule(fields="cuts", allowed=form))
    found = not_runnable(build_chain(MODELS["llama3-70b"]), job, cut(job, sizes))
    assert (found == ()) == (form == "free" or form in forms.split())
    layers = [size - (n in (0, len(sizes) - 1)) for n, size in enumerate(sizes)]
    for one in found:
        text = ", ".join(map(str, layers))
        assert one.sentence == f"cuts of {text} transformer layers: because"


# ---------------------------------------------------------------- stacks of the catalog

MOE = {"model": "deepseek-v3", "ep": 8, "dp_in": 8}
NORMS = {"recompute": "selective", "recompute_modules": ("norm", "mlp_act")}
CASES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]] = {
    # stack: what it runs, and what breaks which rule
    "megatron-core": (
        [{"tp": 8, "pp": 4, "zero": 1}, {"tp": 8, "pp": 4, "vpp": 2}, {**MOE, **NORMS},
         {"pp": 3, "outer_dp": 16}, {"cp": 2, "cp_comm": "a2a"},
         {"cp": 4, "cp_comm": "a2a+p2p", "cp_a2a": 2},
         {"zero": 1, "shard": "dp_in", "dp_in": 8}],
        [("zero zero", {"zero": 2}), ("schedule schedule", {"pp": 2, "schedule": "gpipe"}),
         ("recompute-dense recompute_modules", NORMS),
         ("recompute-experts recompute_modules", {"model": "mixtral-8x7b", **NORMS}),
         ("encoder-decoder pp", {"model": "t5-11b", "pp": 2}),
         ("vision-cp cp", {"model": "llava1.5-7b", "pp": 2, "cp": 2})]),
    "megatron-core-serial": ([{"tp": 8, "pp": 4}], [("zero zero", {"zero": 3})]),
    "megatron-core-2024": (
        [{"tp": 8, "pp": 4, "zero": 1}, {"tp": 8, "pp": 4, "vpp": 2}],
        [("cuts cuts", {"pp": 3, "outer_dp": 16}), ("interleaved-pp pp", {"pp": 2, "vpp": 2}),
         ("cp-comm cp_comm", {"cp": 2, "cp_comm": "a2a"}), ("recompute-dense recompute_modules",
                                                           {**MOE, **NORMS})]),
    "megatron-bridge": (
        [{"tp": 8, "pp": 4, "zero": 1}, {"zero": 3, "tp": 2}],
        [("zero zero", {"pp": 4, "zero": 2}),
         ("hsdp-experts ep", {**MOE, "zero": 3, "shard": "dp_in"})]),
    "megatron-fsdp": (
        [{"zero": 3, "tp": 2}, {"zero": 2, "shard": "dp_in", "dp_in": 8}, {**MOE, "zero": 3}],
        [("pp pp", {"pp": 2}), ("hsdp-experts ep", {**MOE, "zero": 3, "shard": "dp_in"})]),
    "megatron-2021": (
        [{"tp": 8, "pp": 4, "vpp": 2}, {"tp": 8, "recompute": "selective"}],
        [("zero zero", {"zero": 1}), ("cuts cuts", {"pp": 3, "outer_dp": 16}),
         ("interleaved-pp pp", {"pp": 2, "vpp": 2}), ("other-degrees cp", {"cp": 2})]),
    "torchtitan": (
        [{"tp": 8, "pp": 4, "zero": 1}, {"tp": 8, "pp": 4, "vpp": 2, "zero": 1}, NORMS,
         {"tp": 8, "zero": 2}, {"cp": 2, "cp_comm": "all_gather", "zero": 3},
         {"pp": 4, "schedule": "gpipe", "micro_batch": 64, "outer_dp": 4, "zero": 1},
         {"model": "mixtral-8x7b", "tp": 2, "ep": 4, "etp": 1, "zero": 3}],
        [("zero zero", {"zero": 1}), ("zero-pipeline zero", {"pp": 4, "zero": 3}),
         ("1f1b micro_batches", {"pp": 4, "outer_dp": 64,
                                                             "micro_batch": 2}),
         ("tied pp", {"model": "gpt2-xl", "pp": 2}), ("kv-heads kv_heads", {"tp": 16}),
         ("cp-comm cp_comm", {"cp": 2}), ("selective-recompute module_set",
                                          {**NORMS, "recompute_modules": ("core_attn",)}),
         ("full-recompute recompute_layers", {"recompute": "full", "recompute_layers": 2}),
         ("etp etp", {"model": "mixtral-8x7b", "tp": 2, "ep": 4, "etp": 2})]),
    "torchtitan-2024": ([{"zero": 3}], [("zero zero", {"zero": 1})]),
    "torchtitan-eager": ([{"zero": 3}], [("zero zero", {"zero": 1})]),
    "deepspeed": (
        [{"pp": 4, "zero": 1}, {"zero": 3, "tp": 2, "sp": False},
         {"cp": 2, "cp_comm": "a2a", "zero": 3}],
        [("zero-pipeline zero", {"pp": 4, "zero": 2}), ("sp sp", {"tp": 2}),
         ("schedule schedule", {"tp": 8, "pp": 4, "vpp": 2, "sp": False}),
         ("cp-pipeline cp", {"cp": 2, "pp": 2, "cp_comm": "a2a"}),
         ("cuts cuts", {"pp": 3, "outer_dp": 16}),
         ("shard shard", {"zero": 3, "shard": "dp_in", "dp_in": 8})]),
    "megatron-deepspeed": (
        [{"tp": 8, "pp": 4, "zero": 1}, {"zero": 3, "recompute": "selective"}],
        [("zero-pipeline zero", {"pp": 4, "zero": 2}),
         ("recompute recompute", {"pp": 4, "recompute": "selective"}),
         ("selective-recompute recompute_modules", NORMS)]),
    "megatron-deepspeed-unfused": ([{"pp": 4}], [("zero-pipeline zero", {"pp": 4, "zero": 2})]),
    "vtrain": ([{"pp": 4}], [("schedule schedule", {"tp": 8, "pp": 4, "vpp": 2})]),
    "internevo": (
        [{"tp": 8, "pp": 4, "zero": 1}, {"tp": 8, "pp": 4, "vpp": 2}, {"zero": 3}],
        [("zero-pipeline zero", {"pp": 4, "zero": 3}), ("cp cp", {"cp": 2}),
         ("recompute recompute", {"recompute": "selective"}),
         ("shard-experts shard", {**MOE, "zero": 1, "shard": "dp_in"})]),
    "maxtext": (
        [{"pp": 4, "schedule": "gpipe", "zero": 3, "recompute": "full"}, {**NORMS, "cp": 2}],
        [("schedule schedule", {"pp": 4, "recompute": "full"}),
         ("recompute recompute", {}), ("zero zero", {"zero": 2}),
         ("cuts cuts", {"pp": 3, "outer_dp": 16}), ("micro-batches micro_batches",
                                                   {"pp": 3, "outer_dp": 16})]),
    "fsdp": ([{"zero": 3}, {"zero": 2, "tp": 8, "shard": "dp_in", "dp_in": 4}],
             [("pp pp", {"pp": 2}), ("zero zero", {"zero": 1}),
              ("kv-heads kv_heads", {"tp": 16, "zero": 2})]),
    "llm-foundry": (
        [{"zero": 3, "recompute": "full"}, {"zero": 3, "shard": "dp_in", "dp_in": 8}],
        [("pp pp", {"pp": 2}), ("tp tp", {"tp": 2}), ("cp cp", {"cp": 2}),
         ("zero zero", {"zero": 1}), ("recompute recompute", {"recompute": "selective"})]),
    "llm-foundry-pure": ([{"zero": 3}], [("pp pp", {"pp": 2})]),
}


def test_every_stack_has_cases() -> None:
    assert set(CASES) == set(STACKS)


@pytest.mark.parametrize(
    ("stack", "given"), [(name, given) for name, (good, _) in CASES.items() for given in good],
    ids=str)
def test_what_a_stack_runs(stack: str, given: dict[str, Any]) -> None:
    assert findings(stack, **given) == {}


@pytest.mark.parametrize(
    ("stack", "rule", "given"),
    [(name, *case) for name, (_, bad) in CASES.items() for case in bad], ids=str)
def test_what_a_stack_does_not_run(stack: str, rule: str, given: dict[str, Any]) -> None:
    assert rule in findings(stack, **given)


@pytest.mark.parametrize("stack", sorted(
    set(STACKS) - {"megatron-fsdp", "fsdp", "llm-foundry", "llm-foundry-pure"}))
def test_no_stack_has_stages_of_different_degrees(stack: str) -> None:
    job = job_of(stack)
    found = not_runnable(build_chain(MODELS["llama3-70b"]), job, cut(job, [41, 41], [2, 4]))
    assert {"block", "tp"} <= {one.field for one in found if "differs" in one.sentence}


def test_orders_of_ranks_that_need_a_list_of_hosts() -> None:
    def needs(stack: str, model: str = "llama3-70b", **given: Any) -> list[str]:
        job = job_of(stack)
        return [one.rule for one in launch_needs(
            build_chain(MODELS[model]), job, configured(job, model, **given))]

    both = {"pp": 2, "outer_dp": 4, "dp_in": 4, "tp": 8}
    assert needs("megatron-core", **both) == ["host-list"]
    assert needs("megatron-core", **{**both, "outer_dp": 1, "dp_in": 16}) == []
    assert needs("megatron-core", **{**both, "outer_dp": 16, "dp_in": 1}) == []
    assert needs("megatron-core", pp=3, tp=8, outer_dp=10) == ["idle-devices"]
    assert needs("torchtitan", **{**both, "outer_dp": 16, "dp_in": 1}) == ["host-list"]
    experts = {"model": "deepseek-v3", "pp": 2, "tp": 8, "dp_in": 1}
    assert needs("megatron-core", **experts) == [], "etp 8 x ep 1 = tp 8 x cp 1"
    assert needs("megatron-core", **experts, etp=1) == ["host-list-mapping"]
    assert needs("megatron-core", pp=2, cp=2) == ["host-list-mapping"], "dense: etp = tp"


def test_multi_token_prediction_is_in_one_chunk() -> None:
    model = MODELS["deepseek-v3"].replace(mtp_layers=2)
    chain, job = build_chain(model), job_of("megatron-core")
    last = len(chain)

    def parted(cut: int) -> list[str]:
        plan = nest.Configuration.parse({"micro_batch": 1, "stages": [
            {"layers": (0, cut), "devices": (0, 1)}, {"layers": (cut, last), "devices": (1, 2)}]})
        return [one.rule for one in not_runnable(chain, job, plan)]

    kinds = [chain.kinds[kind].name for kind in chain.order]
    first = kinds.index("mtp_layer")
    assert parted(first) == []
    assert parted(first + 1) == ["mtp"]


def test_ends_and_multi_token_prediction_have_their_chunks() -> None:
    """Where Megatron-Core has no text for a division, its rules say why."""
    model = MODELS["deepseek-v3"]
    chain, job = build_chain(model), job_of("megatron-core", global_batch=8)
    last = len(chain)
    for cuts, rules in (
        ((0, 20, 40, 60, last), []), ((0, 20, 20, 60, last), []), ((0, 20, 40, last - 1, last), []),
        ((0, 0, 40, 60, last), ["placed"]), ((0, 20, 40, last, last), ["placed"]),
        ((0, 20, last - 1, last - 1, last), ["placed"]),
    ):
        plan = nest.Configuration.parse({"micro_batch": 1, "vpp": 2, "stages": [
            {"layers": (cuts[s], cuts[s + 3]), "devices": (s, s + 1),
             "chunks": [cuts[s : s + 2], cuts[s + 2 : s + 4]]} for s in range(2)]})
        assert [one.rule for one in not_runnable(chain, job, plan)] == rules, cuts
        assert (layout_of(chain, cuts, 2) is None) == bool(rules)


def test_a_plan_that_needs_a_list_states_it() -> None:
    job = job_of("megatron-core")
    given = {"pp": 2, "outer_dp": 4, "dp_in": 4, "tp": 8}

    def plan(**changes: int) -> nest.Plan:
        return nest.evaluate(MODELS["llama3-70b"], CLUSTER, job, configured(
            job, "llama3-70b", **{**given, **changes}))

    found = plan()
    assert found.host_order is not None
    # The first stage of all four replicas, 32 devices of each 64, and then the second one.
    assert found.host_order[:33] == (*range(32), 64)
    assert found.host_order[128:130] == (32, 33)
    assert sorted(found.host_order) == list(range(256))
    staged = sorted(found.ranks(), key=lambda rank: rank.stage)
    assert found.host_order == tuple(rank.device for rank in staged)
    assert plan(outer_dp=1, dp_in=16).host_order is None


def test_a_stack_without_rules_says_nothing() -> None:
    stack = {"base": "megatron-core", "capabilities": None}
    assert findings(stack, pp=2, zero=3) == {}
    plan = nest.evaluate(MODELS["llama3-70b"], CLUSTER, job := job_of(stack),
                         configured(job, "llama3-70b", tp=8, pp=4))
    assert plan.runnable is None
    assert plan.not_runnable == plan.launch_needs == ()


LORA = {"lora": {"rank": 4, "targets": ["linear_qkv"]}}


@pytest.mark.parametrize(("stack", "trainable", "said"), [
    ("megatron-core", LORA, "trains lora: its training of language models trains all parameters; "
                            "adapters are Megatron-Bridge's (stack megatron-bridge); allowed: all"),
    ("megatron-core", {"parts": ["head"]}, "trains parts: "),
    ("megatron-bridge", LORA, None),
    ("megatron-bridge", {**LORA, "frozen_precision": "nf4"}, "trains qlora: of language models"),
    ("megatron-2021", LORA, "trains lora: its pretraining trains all parameters"),
    ("megatron-deepspeed", LORA, "trains lora: its pretraining trains all parameters"),
    ("torchtitan", LORA, None), ("torchtitan", {"parts": ["head"]}, "trains parts: its LoRAConv"),
    ("maxtext", {"parts": ["head"]}, None), ("maxtext", LORA, "trains lora: it trains all"),
    ("llm-foundry", LORA, None), ("llm-foundry", {**LORA, "frozen_precision": "nf4"}, "trains q"),
    ("deepspeed", {**LORA, "frozen_precision": "nf4"}, None), ("fsdp", {"parts": ["biases",
                                                                                  "head"]}, None),
])
def test_what_a_stack_trains(stack: str, trainable: dict[str, Any], said: str | None) -> None:
    model = MODELS["llama3-70b"].replace(trainable=trainable)
    job = job_of(stack)
    found = {one.rule: one.sentence for one in not_runnable(
        build_chain(model), job, even_configuration(model, CLUSTER, job))}
    own = found.get("trains")
    assert own is None if said is None else own is not None and own.startswith(said)


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-bridge", "torchtitan", "maxtext",
                                   "megatron-deepspeed", "llm-foundry", "fsdp", "deepspeed"])
def test_which_stacks_have_optimizers_of_few_bits(stack: str) -> None:
    job = job_of(stack, optimizer="adam-8bit")
    found = {one.field for one in not_runnable(
        build_chain(MODELS["llama3-70b"]), job, configured(job, "llama3-70b"))}
    assert ("optimizer" in found) is (stack not in ("fsdp", "deepspeed"))


def test_tensor_parallelism_divides_the_rank() -> None:
    model, job = MODELS["llama3-70b"].replace(trainable=LORA), job_of("megatron-bridge")
    for tp, rules in ((4, []), (8, ["lora-rank"])):
        plan = even_configuration(model, CLUSTER, job, tp=tp)
        assert [one.rule for one in not_runnable(build_chain(model), job, plan)] == rules


def test_an_image_model_has_a_frozen_tower_in_megatron() -> None:
    model = MODELS["llava1.5-7b"].replace(trainable={"parts": ["projector"]})
    for stack in ("megatron-core", "megatron-bridge"):
        job = job_of(stack)
        found = not_runnable(build_chain(model), job, even_configuration(model, CLUSTER, job))
        assert not [one for one in found if one.field == "trains"]


# ---------------------------------------------------------------- the data


SOURCE = re.compile(r"\S+(@|==)\S+ \S+\.(py|yml):\d+|arXiv:\d{4}\.\d{5}, section \d+")


@pytest.mark.parametrize("stack", STACKS)
def test_every_rule_has_a_source_with_version_file_and_line(stack: str) -> None:
    known = load_stack(stack).capabilities
    assert known is not None and known.rules
    for rule in (*known.rules.values(), *known.needs.values()):
        assert SOURCE.fullmatch(rule.source), rule.source
        assert rule.sentence[-1] not in ".:"


def test_a_table_takes_over_the_rules_of_its_base() -> None:
    core, old = load_capabilities("megatron-core"), load_capabilities("megatron-core-0.7")
    assert old.rules["alike-degrees"] == core.rules["alike-degrees"]
    assert "recompute-mla" in core.rules and "recompute-mla" not in old.rules
    assert old.rules["cp-comm"] != core.rules["cp-comm"]
    assert old.needs == core.needs and old.version == "0.7"


def test_a_table_of_ones_own_is_read_back_the_same() -> None:
    stack = load_stack({"base": "fsdp", "capabilities": {
        "base": "megatron-core", "rules": {"zero": None, "tp": {
            "fields": "tp", "when": {"pp": "2..", "experts": True, "sp": ["yes", "no"]},
            "allowed": [1, 2, "4..8"], "sentence": "a node has 8", "source": "own"}}}})
    assert load_stack(stack.as_dict()) == stack
    known = stack.capabilities
    assert known is not None and "zero" not in known.rules
    assert known.rules["tp"].wants == "1..2,4..8"
    assert known.rules["tp"].conditions == "pp 2.., experts yes, sp yes, no"
    assert load_stack("fsdp").as_dict()["capabilities"] == "fsdp"


GOOD = {"fields": "zero", "allowed": 1, "sentence": "why", "source": "where"}


@pytest.mark.parametrize(("rule", "message"), [
    ({**GOOD, "fields": "zer0"}, r"rules.r.fields.*got 'zer0'; allowed: pp, vpp, "),
    ({**GOOD, "fields": [[1]]}, r"rules.r.fields.0: got \[1\]; allowed: pp, vpp, "),
    ({**GOOD, "fields": []}, r"rules.r.fields: got \[\]; allowed: at least 1 entries"),
    ({**GOOD, "allowed": "x"}, r"rules.r.allowed: got 'x'; allowed: a whole number"),
    ({**GOOD, "fields": "cp_comm", "allowed": "ring"},
     r"got 'ring'; allowed: some of p2p, a2a, all_gather"),
    ({**GOOD, "fields": "module_set", "allowed": "mlp+x"}, r"allowed: modules joined by \+, of"),
    ({**GOOD, "when": {"pq": 1}}, r"rules.r.when.pq.*got 'pq'; allowed: pp, "),
    ({**GOOD, "when": {"sp": "maybe"}}, r"rules.r.when.sp: got 'maybe'; allowed: some of yes, no"),
    ({**GOOD, "when": [1]}, r"rules.r.when: got \[1\]; allowed: a mapping"),
    ({**GOOD, "alike": True}, r"rules.r: got allowed, alike; allowed: one of allowed, alike, "),
    ({**GOOD, "allowed": None}, r"rules.r: got none; allowed: one of"),
    ({**GOOD, "allowed": None, "multiple_of": "pp y"}, r"multiple_of: got 'pp y'; allowed: nu"),
    ({**GOOD, "allowed": None, "at_least": 0.5}, r"at_least: got 0.5; allowed: numbers"),
    ({**GOOD, "allowed": None, "multiple_of": 0}, r"multiple_of: got 0; allowed: numbers"),
    ({**GOOD, "allowed": None, "fields": "pp", "alike": True}, r"got pp with alike; all"),
    ({**GOOD, "allowed": None, "fields": "sp", "at_least": 2}, r"got sp with at_least; a"),
    ({**GOOD, "fields": ["pp", "sp"]}, r"rules.r"),
    ({**GOOD, "colour": 1}, r"rules.r.colour: unknown field"),
    ({"fields": "pp", "allowed": 1, "source": "s"}, r"rules.r.sentence: missing; needed: why, f"),
    (7, r"rules.r: got 7; allowed: a mapping"),
])
def test_bad_rules_have_one_clear_message(rule: Any, message: str) -> None:
    stack = {"base": "fsdp", "capabilities": {"software": "a", "version": "1",
                                              "rules": {"r": rule}}}
    with pytest.raises(InputError, match=message) as caught:
        load_stack(stack)
    assert "capabilities" in str(caught.value)


@pytest.mark.parametrize(("given", "message"), [
    ("megatron", r"capabilities: got 'megatron'; allowed: deepspeed, fsdp, "),
    ({"base": "megatron"}, r"got 'megatron'; allowed: deepspeed, fsdp, "),
    ({"base": 3}, r"base: got 3; allowed: deepspeed, fsdp, "),
    ({"base": "fsdp", "rules": [1]}, r"rules: got \[1\]; allowed: a mapping"),
    (3, r"capabilities"),
])
def test_bad_tables_have_one_clear_message(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_stack({"base": "fsdp", "capabilities": given})


# ---------------------------------------------------------------- plans


def test_evaluate_says_what_the_stack_cannot_run() -> None:
    job = job_of("megatron-core")
    plan = nest.evaluate(MODELS["llama3-70b"], CLUSTER, job,
                         configured(job, "llama3-70b", tp=8, pp=4, zero=3))
    assert plan.runnable is False
    assert [(one.field, one.rule) for one in plan.not_runnable] == [("zero", "zero")]
    assert nest.Plan.parse(plan.model_dump(by_alias=True)).not_runnable == plan.not_runnable
    fine = nest.evaluate(MODELS["llama3-70b"], CLUSTER, job,
                         configured(job, "llama3-70b", tp=8, pp=4, zero=1))
    assert fine.runnable is True and fine.not_runnable == ()


# ---------------------------------------------------------------- offloading


def test_settings_that_offload_are_those_of_the_stack():
    core, text = job_of("megatron-core"), "optimizer:0.5+qkv_linear+core_attn"
    optimizer, modules = offload_settings(core, text)
    assert optimizer == ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5 "
                         "--use-precision-aware-optimizer --overlap-cpu-optimizer-d2h-h2d")
    assert modules == ("--fine-grained-activation-offloading --offload-modules qkv_linear "
                       "core_attn")
    assert offload_settings(core, "layers:8") == ("--cpu-offloading-num-layers 8",)
    assert offload_settings(core, "none") == ()
    bridge = offload_settings(job_of("megatron-bridge"), text)
    assert bridge[1].endswith("model.offload_modules=[qkv_linear,core_attn]")
    assert offload_settings(job_of("deepspeed"), "optimizer") == (
        "zero_optimization.offload_optimizer: {device: cpu, ratio: 1}",)
    assert offload_settings(job_of("maxtext"), "optimizer") == ()


@pytest.mark.parametrize("text", ["optimizer:0.5", "optimizer", "layers:8", "core_attn+attn_proj"])
def test_settings_that_offload_are_those_of_the_exported_script(text):
    configuration = configured(job_of("megatron-core"), "llama3-70b", tp=8, zero=1)
    sections = arguments(MODELS["llama3-70b"], job_of("megatron-core"),
                         configuration.model_copy(update={"offload": text}), None, False)
    exported = {word for one in options(sections["MEMORY"]) for word in one}
    words = {word for one in offload_settings(job_of("megatron-core"), text)
             for word in one.split()}
    assert {word.removesuffix(".0") for word in exported} >= words


def test_the_report_has_the_settings():
    job = job_of("megatron-core", global_batch=8)
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=8)
    way = even_configuration(model, cluster, job, zero=1, offload="optimizer")
    text = " ".join(str(nest.evaluate(model, cluster, job, way)).split())
    assert "can run this with --optimizer-cpu-offload --optimizer-offload-fraction 1 --use" in text


@pytest.mark.parametrize(("stack", "dispatcher", "padded", "wanted"), [
    ("megatron-core", "alltoall", True, {}), ("megatron-core", "hybridep", True, {}),
    ("megatron-core", "deepep", False, {}),
    ("megatron-core", "deepep", True, {
        "capacity": "capacity padded: DeepEP's dispatcher pads no experts "
        "(--moe-pad-expert-input-to-capacity); allowed: none, limited"}),
    ("megatron-core-2024", "alltoall", True, {}),
    ("megatron-core-2024", "allgather", False, {
        "dispatcher": "dispatcher allgather: experts of limited capacity need the all-to-all "
        "dispatcher; allowed: alltoall"}),
    ("torchtitan", "alltoall", False, {
        "capacity": "capacity limited: an expert takes all tokens that are sent to it "
        "(non_blocking_capacity_factor is the buffer of a rank); allowed: none"})])
def test_experts_of_a_capacity(
    stack: str, dispatcher: str, padded: bool, wanted: dict[str, str]
) -> None:
    job = job_of({"base": stack, "dispatcher": dispatcher}, expert_capacity=1.25,
                 expert_padding=padded)
    found = not_runnable(build_chain(MODELS["mixtral-8x7b"]), job,
                         configured(job, "mixtral-8x7b", zero=0 if "2024" in stack else 1))
    capacity = {one.field: one.sentence for one in found if "capacity" in one.rule}
    assert capacity == wanted
    dense = not_runnable(build_chain(MODELS["llama3-70b"]), job, configured(job, "llama3-70b"))
    assert not [one for one in dense if "capacity" in one.rule]


def test_packed_samples_are_one_sequence_a_device_in_megatron_bridge() -> None:
    model, cluster = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=8)
    way = even_configuration(model, cluster, nest.Job(global_batch=16, seq_len=4096), tp=2, mbs=2)
    for lengths, packing, broken in (
            (None, "packed", []), ("512:1,4096:1", "padded", []),
            ("512:1,4096:1", "packed", ["mbs"])):
        job = nest.Job(global_batch=16, seq_len=4096, stack="megatron-bridge",
                       lengths=lengths, packing=packing)  # type: ignore[arg-type]
        plan = nest.evaluate(model, cluster, job, way)
        assert [one.field for one in plan.not_runnable] == broken
