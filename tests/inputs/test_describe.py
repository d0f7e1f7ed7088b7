"""Descriptions: good input is understood, every bad field is named with what is allowed."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from descriptions import DEVICE, LOADERS, MODEL, STAGE, TOWER, changed, message, put

from nest.errors import InputError
from nest.inputs import (
    Configuration,
    Job,
    Model,
    SearchSpace,
    StageConfiguration,
    load_device,
    load_job,
    load_model,
)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_every_kind_is_read_from_a_file_and_from_plain_data(kind, suffix, tmp_path):
    load, data = LOADERS[kind]
    from_file = load(put(tmp_path, data, "given" + suffix))
    assert from_file == load(data)
    assert load(from_file) is from_file
    assert load(str(tmp_path / ("given" + suffix))) == from_file


def test_toml_is_read(tmp_path):
    text = 'global_batch = 8\nseq_len = 128\n[stack]\nbase = "fsdp"\nfragmentation = 0.1\n'
    job = load_job(put(tmp_path, text, "job.toml"))
    assert (job.stack.name, job.stack.fragmentation) == ("fsdp (changed)", 0.1)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_description_is_frozen_hashable_and_survives_json_and_pickle(kind):
    load, data = LOADERS[kind]
    value = load(data)
    with pytest.raises(ValueError, match="frozen"):
        setattr(value, next(iter(type(value).model_fields)), 1)
    assert type(value).parse(json.loads(json.dumps(value.as_dict()))) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert hash(value) == hash(load(data))
    assert value.replace() == value


def unbounded(schema, path=""):
    """Paths of numbers in a JSON schema that lack a smallest or a largest value."""
    if isinstance(schema, list):
        for number, part in enumerate(schema):
            yield from unbounded(part, f"{path}.{number}")
    elif isinstance(schema, dict):
        ends = ({"minimum", "exclusiveMinimum"} & set(schema),
                {"maximum", "exclusiveMaximum"} & set(schema))
        if schema.get("type") in ("number", "integer") and not all(ends):
            yield path
        for key, part in schema.items():
            yield from unbounded(part, f"{path}.{key}")


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if "space" not in kind])
def test_every_number_has_a_smallest_and_a_largest_value(kind):
    load, data = LOADERS[kind]  # sets of whole numbers have one range: IntSet
    found = unbounded(type(load(data)).model_json_schema(mode="serialization"))
    assert not [path for path in found if ".Trainable.properties.layers." not in path]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_changed_copy_is_checked_like_the_original(kind):
    load, data = LOADERS[kind]
    value = load(data)
    assert value.model_copy() == value.model_copy(deep=True) == value
    for name in type(value).model_fields:
        same = value.model_copy(update={name: getattr(value, name)})
        assert same == value
        assert same.model_fields_set == value.model_fields_set | {name}
        with pytest.raises(InputError, match=r"got nan|got \(nan|allowed|needed"):
            value.model_copy(update={name: float("nan")})
    with pytest.raises(InputError, match="unknown field"):
        value.model_copy(update={"nonsense": 1})


@pytest.mark.parametrize("kind", LOADERS)
def test_every_field_is_documented_and_has_a_json_schema(kind):
    load, data = LOADERS[kind]
    schema = type(load(data)).model_json_schema()
    json.dumps(schema)
    assert schema["additionalProperties"] is False
    for part in [schema, *schema.get("$defs", {}).values()]:
        for name, field in part.get("properties", {}).items():
            assert field.get("description"), name


def test_dicts_inside_descriptions_are_frozen_too():
    device = load_device(DEVICE)
    for change in (lambda d: d.update(bf16=1), lambda d: d.pop("bf16"), lambda d: d.clear()):
        with pytest.raises(TypeError, match="frozen"):
            change(device.peak_flops)
    with pytest.raises(TypeError, match="frozen"):
        device.peak_flops["bf16"] = 1


def test_direct_construction_reports_input_errors_too():
    assert "job: global_batch: got 0; allowed: at least 1" in message(
        Job, global_batch=0, seq_len=1
    )
    text = message(Model, **changed(MODEL, "heads", 7))
    assert "model: heads: got 7; allowed: a divisor of hidden = 64, or give head_dim" in text


def test_all_problems_of_a_file_are_reported_at_once(tmp_path):
    data = changed(changed(changed(MODEL, "layers", 0), "ffn", ...), "hiden", 3)
    path = put(tmp_path, changed(data, "norm", "batchnorm"))
    lines = message(load_model, path).splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert f"{path}: ffn: missing; needed: width of the dense MLP" in "\n".join(lines)
    assert "did you mean hidden?" in "\n".join(lines)


def test_replace_validates_and_lets_defaults_follow():
    model = load_model(MODEL)
    assert model.replace(heads=8).head_dim == 8
    assert model.replace(heads=8).kv_heads == 8
    assert "heads" in message(model.replace, heads=7)


def test_a_space_keeps_each_value_once_and_modules_in_order():
    free = SearchSpace()
    assert free.schedules == ("1f1b", "interleaved")
    assert free.describe() == dict.fromkeys(SearchSpace.model_fields, "any") | {
        "schedule": "default", "offload": "none"}
    assert SearchSpace.parse(free.describe()) == free
    assert SearchSpace(cp="any", sp="any", shard="any", recompute_modules="any") == free
    space = SearchSpace(recompute_modules="moe+norm,mlp_act, core_attn", shard="dp_in,dp,dp_in",
                        cp_comm="a2a", sp="yes", recompute_layers=3, schedule="gpipe")
    assert space.recompute_modules == ("norm+moe", "mlp_act", "core_attn")
    assert (space.shard, space.cp_comm, space.sp) == (("dp_in", "dp"), ("a2a",), (True,))
    assert space.describe()["recompute_modules"] == "norm+moe,mlp_act,core_attn"
    assert space.allows("recompute_modules", "norm+moe")
    assert not space.allows("recompute_modules", "norm")
    assert not space.allows("recompute_layers", 2)
    assert SearchSpace.parse(space.as_dict()) == space == SearchSpace.parse(space.describe())


def test_what_a_configuration_leaves_out_follows_from_the_rest():
    stage = StageConfiguration(**STAGE)
    assert (stage.sp, stage.etp, stage.cp, stage.cp_comm) == (True, 4, 1, "p2p")
    assert (stage.shard, stage.chunks, stage.recompute_layers) == ("dp", ((0, 2),), None)
    assert stage.recompute_modules == ()
    assert stage.replace(recompute="selective").recompute_modules == ("core_attn",)
    several = stage.replace(recompute="selective", recompute_modules=("norm", "moe"))
    assert several.recompute_modules == ("norm", "moe")
    for modules in (("moe", "norm"), ("norm", "norm"), ()):
        assert "in this order" in message(stage.replace, recompute="selective",
                                          recompute_modules=modules)
    plan = Configuration(micro_batch=1, stages=[stage])
    assert (plan.schedule, plan.vpp, plan.order, plan.stride) == ("1f1b", 1, None, 4)
    assert plan.replace(vpp=2).schedule == "interleaved"


def test_exceptions_of_nest_survive_pickle():
    from nest.errors import InfeasibleError

    error = pickle.loads(pickle.dumps(InputError("a\nb", ("a", "b"))))
    assert (str(error), error.problems) == ("a\nb", ("a", "b"))
    assert pickle.loads(pickle.dumps(InfeasibleError("x", {"stage": 1}))).nearest == {"stage": 1}


BAD_FIELDS = [
    ("model", "layers", 0, "at least 1"),
    ("model", "layers", 10**9, "at most 10000"),
    ("model", "layers", "two", "a whole number"),
    ("model", "layers", True, "a whole number"),
    ("model", "layers", 2.5, "a whole number"),
    ("model", "layers", None, "a whole number"),
    ("model", "hidden", 10**7, "at most 1000000"),
    ("model", "heads", 3, "a divisor of hidden = 64"),
    ("model", "kv_heads", 3, "a divisor of heads = 4"),
    ("model", "gated", "maybe", "true or false"),
    ("model", "gated", 1, "true or false"),
    ("model", "norm", "none", "'rmsnorm' or 'layernorm'"),
    ("model", "kind", "rnn", "'decoder', 'encoder' or 'encoder-decoder'"),
    ("model", "encoder_layers", 2, "nothing with kind decoder"),
    ("model", "encoder_seq_len", 64, "nothing with kind decoder"),
    ("model", "mtp_layers", 101, "at most 100"),
    ("model", "relative_positions", -1, "at least 0"),
    ("model", "vision", {"layers": 1}, "needed: patches of all images of a sample"),
    ("model", "vision", 3, "a mapping of fields"),
    ("model", "vision", {**TOWER, "heads": 3}, "a divisor of hidden = 32"),
    ("model", "vision", {**TOWER, "merge": 3}, "a divisor of tokens = 4"),
    ("model", "vision", {**TOWER, "projector_layers": 3}, "at most 2"),
    ("model", "name", "", "printable characters"),
    ("model", "name", "a\nb", "printable characters"),
    ("model", "colour", "red", "unknown field"),
    ("model", "vocab", ..., "missing"),
    ("model", "moe", {"experts": 4, "top_k": 5, "ffn": 8}, "1 to 4 (experts)"),
    ("model", "moe", {"experts": 4, "top_k": 1, "ffn": 8, "first_dense": 3}, "at most layers = 2"),
    ("model", "moe", {"experts": 4}, "needed: width of one routed expert"),
    ("model", "moe", [4], "a mapping of fields"),
    ("model", "mla", {"kv_rank": 4}, "missing"),
    ("model", "published_parameters", -1, "more than 0"),
    ("model", "published_parameters", float("nan"), "finite"),
    ("cluster", "levels", [], "at least 1 entries"),
    ("cluster", "levels", {"a": 1}, "a list"),
    ("cluster", "levels.0.size", 0, "at least 1"),
    ("cluster", "levels.0.size", -8, "at least 1"),
    ("cluster", "levels.0.size", "n", "a whole number"),
    ("cluster", "levels.0.bandwidth", "100 XB/s", "Gb/s"),
    ("cluster", "levels.0.bandwidth", 0, "1 to 1e+18"),
    ("cluster", "levels.0.bandwidth", "-5 GB/s", "not negative"),
    ("cluster", "levels.0.bandwidth", ..., "exactly one of bandwidth and oversubscription"),
    ("cluster", "levels.1.oversubscription", 2, "exactly one of bandwidth and oversubscription"),
    ("cluster", "levels.2.oversubscription", 0.5, "at least 1"),
    ("cluster", "levels.0.latency", "5 m", "us"),
    ("cluster", "levels.0.latency", ..., "seconds of one message"),
    ("cluster", "levels.0.efficiency", 1.5, "at most 1"),
    ("cluster", "levels.0.efficiency", 0, "at least 0.001"),
    ("cluster", "levels.0.latency", "101 s", "0 to 100"),
    ("stack", "gemm_derate", 1e-300, "at least 0.001"),
    ("device", "memory", 0, "1 to 1e+18"),
    ("cluster", "levels.1.name", "node", "a name of its own"),
    ("cluster", "levels.2.size", 10**6, "at most 1000000"),
    ("cluster", "devices", 25, "24 = 4 x 2 x 3 (sizes of the levels), or from 17 on"),
    ("cluster", "device", "h100x", "close: h100-sxm"),
    ("cluster", "device", 5, "a mapping of fields"),
    ("cluster", "device.memory", "80 GBit", "GiB"),
    ("cluster", "device.peak_flops", {}, "at least 1 entries"),
    ("cluster", "device.peak_flops", {"int8": 1}, "bf16"),
    ("cluster", "device.peak_flops.bf16", "fast", "TFLOP/s"),
    ("device", "memory_reserved", "2 GiB", "less than memory = 1 GiB"),
    (
        "device",
        "gemm",
        {"bf16": {"peak_fraction": 1, "m_half": 0, "n_half": 0, "k_half": 0}},
        "also default",
    ),
    ("job", "global_batch", 10**8, "at most 10000000"),
    ("job", "seq_len", 0, "at least 1"),
    ("job", "precision", "int4", "'fp8-blockwise', 'mxfp8' or 'nvfp4'"),
    ("job", "optimizer", "lion", "'adam'"),
    ("job", "stack", "megatron", "megatron-core"),
    ("job", "stack", {"base": "fsdp", "overlap_tp": 2}, "at most 1"),
    ("job", "stack", {"base": "fsdp", "zero_with_pipeline": [0, 4]}, "at most 3"),
    ("job", "stack", {"base": 3}, "nest list stacks"),
    ("job", "stack", {"base": "fsdp", "overlap_cp": 2}, "at most 1"),
    ("space", "zero", "0..4", "0 to 3"),
    ("space", "tp", 0, "1 to 10000000"),
    ("space", "tp", "8..4", "from the smaller to the larger"),
    ("space", "tp", "x", "1..16"),
    ("space", "tp", [], "not empty"),
    ("space", "tp", [1, "a"], "1,2,4"),
    ("space", "tp", True, "1..16"),
    ("space", "tp", 1.5, "1..16"),
    ("space", "cp", 0, "1 to 10000000"),
    ("space", "vpp", "0..2", "1 to 10000000"),
    ("space", "cp_comm", "ring", "'p2p', 'a2a', 'all_gather' or 'a2a+p2p'"),
    ("space", "shard", ["dp", "fsdp"], "'dp' or 'dp_in'"),
    ("space", "schedule", "zb", "'1f1b', 'interleaved', 'gpipe', 'combined', 'zb1p'"),
    ("space", "recompute", ["none", "some"], "'none', 'selective' or 'full'"),
    ("space", "recompute", [], "at least one value"),
    ("space", "recompute_modules", "core", "modules joined by +, of core_attn, norm, mlp_act, moe"),
    ("space", "recompute_modules", ["norm", "norm+norm"], "modules joined by +"),
    ("space", "recompute_modules", [3], "text"),
    ("space", "recompute_modules", [], "at least one value"),
    ("space", "recompute_layers", 0, "1 to 10000000"),
    ("space", "sp", "perhaps", "true or false"),
    ("configuration", "stages", [], "at least 1 entries"),
    ("configuration", "stages.0.layers", [3, 2], "first <= end"),
    ("configuration", "stages.0.devices", [4, 0], "first < end"),
    ("configuration", "stages.0.devices", [0], "missing"),
    ("configuration", "stages.0.tp", 0, "at least 1"),
    ("configuration", "stages.0.zero", 4, "at most 3"),
    ("configuration", "stages.0.cp", 0, "at least 1"),
    ("configuration", "stages.0.cp_comm", "ring", "'p2p', 'a2a', 'all_gather' or 'a2a+p2p'"),
    ("configuration", "stages.0.shard", "outer", "'dp' or 'dp_in'"),
    ("configuration", "stages.0.recompute_modules", ["norm"], "with recompute selective only"),
    ("configuration", "stages.0.recompute_layers", 2, "with recompute full only"),
    ("configuration", "stages.0.recompute_layers", 0, "at least 1"),
    ("configuration", "stages.0.chunks", [], "at least 1 entries"),
    ("configuration", "stages.0.chunks", [[0, 1]], "from the first to the last of layers [0, 2)"),
    ("configuration", "stages.0.chunks", [[0, 1], [3, 2]], "first <= end"),
    ("configuration", "vpp", 0, "at least 1"),
    ("configuration", "schedule", "zb", "'1f1b', 'interleaved', 'gpipe', 'combined', 'zb1p'"),
    ("configuration", "order", [0, -1], "at least 0"),
    ("configuration", "order", "0,1", "a list"),
    ("configuration", "micro_batch", ..., "samples that a super-pipeline takes"),
    ("profile", "layers", [], "at least 1 entries"),
    ("profile", "layers.0.tp", {}, "at least 1 entries"),
    ("profile", "layers.0.tp.1.forward", -1, "not negative"),
    ("profile", "layers.0.tp.1.backward", ..., "seconds of the backward"),
    ("profile", "layers.0.repeat", 10**6, "at most 10000"),
    ("profile", "layers.0.output_bytes", "big", "GiB"),
    ("profile", "layers.0.inputs", ["b"], "the name of a layer that comes before it"),
    ("profile", "layers.0.inputs", "a", "a list"),
    ("profile", "layers", list(range(10_001)), "at most 10000 entries"),
    ("cluster", "levels", list(range(9)), "at most 8 entries"),
]


@pytest.mark.parametrize(("kind", "field", "value", "allowed"), BAD_FIELDS)
def test_a_bad_field_is_named_with_what_is_allowed(kind, field, value, allowed, tmp_path):
    load, data = LOADERS[kind]
    path = put(tmp_path, changed(data, field, value))
    text = message(load, path)
    assert str(path) in text
    assert field.split(".")[-1] in text or field.split(".")[0] in text
    assert allowed in text
    assert "got " in text or "missing" in text
