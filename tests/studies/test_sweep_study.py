"""What a person writes: axes, paths, constraints, prices; each mistake has one message."""

from __future__ import annotations

import contextlib

import pytest
from command_line import CLUSTER
from descriptions import MODEL, changed, put
from hypothesis import given
from hypothesis import strategies as st
from studies import STUDY

from nest.errors import InputError
from nest.studies.axes import Axis, Expression
from nest.studies.points import Point, Points, best_first, combinations
from nest.studies.study import PriceList, Study, bill, switches_of, with_field
from nest.studies.sweep import load_study


def points(study: dict) -> list[Point]:
    found = load_study(study)
    maker = Points(found)
    return [point for number, choices in combinations(found)
            if (point := maker.point(number, choices)) is not None]


# ---------------------------------------------------------------- axes


@pytest.mark.parametrize(("axis", "values"), [
    ([1, "a", None], [1, "a", None]),
    ({"from": 1, "to": 5, "count": 3}, [1, 3, 5]),
    ({"from": 1, "to": 4, "count": 8}, [1, 2, 3, 4]),  # whole numbers, each once
    ({"from": 1.0, "to": 2.0, "count": 3}, [1.0, 1.5, 2.0]),
    ({"from": 64, "to": 1024, "times": 2}, [64, 128, 256, 512, 1024]),
    ({"from": 64, "to": 1000, "times": 2}, [64, 128, 256, 512]),
    ({"from": 8, "to": 32, "step": 8}, [8, 16, 24, 32]),
    ({"from": "100 GB/s", "to": "400 GB/s", "count": 3, "scale": "log"},
     ["100 GB/s", "200 GB/s", "400 GB/s"]),
    ({"from": "0.1 us", "to": "0.3 us", "step": 0.1}, ["0.1 us", "0.2 us", "0.3 us"]),
])
def test_values_of_an_axis(axis, values):
    study = load_study({**STUDY, "axes": {"job.global_batch": axis}})
    assert [choice.label for choice in study.listed("job.global_batch")] == values


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e6), st.integers(2, 50), st.booleans())
def test_ranges_begin_and_end_where_they_say(low, ratio, count, log):
    axis = Axis.parse({"from": low, "to": low * ratio, "count": count,
                       "scale": "log" if log else "linear"})
    values = [choice.label for choice in axis.listed("x")]
    assert values[0] == pytest.approx(low) and values[-1] == pytest.approx(low * ratio)
    assert values == sorted(values) and len(values) <= count


def test_choices_set_several_fields_and_deeper_fields_come_later():
    small = {**CLUSTER, "name": "small", "default_devices": 4}
    study = {**STUDY, "axes": {
        "cluster.device.memory": ["2 GiB"],
        "kind": {8: {"job.seq_len": 64, "cluster": CLUSTER}, "b": {"cluster": small}}}}
    first, second = points(study)
    assert first.labels == ("2 GiB", 8) and second.labels == ("2 GiB", "b")
    assert (first.question.job.seq_len, second.question.job.seq_len) == (64, 128)
    assert (first.question.cluster.size, second.question.cluster.size) == (8, 4)
    assert {one.question.cluster.device.memory for one in (first, second)} == {2 * 2.0**30}


def test_every_section_and_every_field_of_it_can_be_varied():
    study = {**STUDY, "axes": {
        "model.layers": [2, 3], "cluster.devices": [4, 8], "cluster.levels.-1.latency": ["7 us"],
        "cluster.levels.leaf.oversubscription": [4], "job.stack.overlap_tp": [0.5],
        "job.precision": ["bf16", "fp16"], "space.tp": ["1..2"], "search.beyond_stack": [True]}}
    found = points(study)
    assert len(found) == 8 and len({one.key for one in found}) == 8
    question = found[-1].question
    assert question.model.layers == 3 and question.cluster.size == 8
    assert question.cluster.levels[1].latency == 7e-6
    assert question.cluster.levels[1].bandwidth is None
    assert question.cluster.nominal_bandwidth[1] == 100e9 / 4
    assert question.job.stack.overlap_tp == 0.5 and question.search.beyond_stack
    assert str(question.space.tp) == "1..2"
    assert question.job.precision == "fp16"


def test_files_and_names_are_read_with_the_study(tmp_path):
    put(tmp_path, MODEL, "mine.yaml")
    put(tmp_path, CLUSTER, "net.yaml")
    path = put(tmp_path, {"cluster": "net.yaml", "job": {"global_batch": 8, "seq_len": 4096},
                          "axes": {"model": ["mine.yaml", "llama2-7b"]}}, "mystudy.yaml")
    study = load_study(path)
    assert study.name == "mystudy" and study.cluster["name"] == "c"
    assert [choice.label for choice in study.listed("model")] == ["mine.yaml", "llama2-7b"]
    (tmp_path / "mine.yaml").unlink()
    again = load_study(study.as_dict())
    assert again.digest == study.digest and len(points(again.as_dict())) == 2


def test_a_key_is_all_that_decides_an_answer_and_nothing_else():
    base = points(STUDY)
    other = points({**STUDY, "name": "other", "prices": {"device_hour": 1}})
    assert [one.key for one in other] == [one.key for one in base]
    for path, value in (("model.layers", 3), ("cluster.levels.0.latency", "6 us"),
                        ("job.seq_len", 256), ("search", {"fillings": True})):
        assert not {one.key for one in points(changed(STUDY, path, value))} & {
            one.key for one in base}


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize("method", ["random", "latin-hypercube"])
def test_samples_are_points_of_the_grid_and_repeat(method):
    study = {**STUDY, "axes": {"job.global_batch": {"from": 1, "to": 9999, "step": 1},
                               "cluster.device.memory": {"from": "1 GiB", "to": "9 GiB"}},
             "sample": {"method": method, "count": 20, "seed": 3}}
    one, two = points(study), points(study)
    assert one == two and len(one) == 20
    assert points(changed(study, "sample.seed", 4)) != one
    assert all(1 <= p.question.job.global_batch <= 9999 for p in one)
    assert all(2**30 <= p.question.cluster.device.memory <= 9 * 2**30 for p in one)
    if method == "latin-hypercube":  # one in each twentieth of each axis
        assert sorted(int((p.question.job.global_batch - 1) / 9999 * 20) for p in one) == [
            *range(20)]


def test_random_samples_of_a_huge_grid():
    axis = {"from": 1, "to": 9999, "step": 1}
    found = load_study({**STUDY, "axes": {
        "job.global_batch": axis, "job.seq_len": axis, "model.layers": axis, "model.vocab": axis},
        "sample": {"method": "random", "count": 7}})
    assert found.size == 7 and len({number for number, _ in combinations(found)}) == 7


def test_random_samples_of_a_grid_beyond_all_counts():
    """10**24 combinations: more than a range of Python counts."""
    axis = {"from": 1, "to": 9999, "step": 1}
    fields = ("layers", "hidden", "heads", "ffn", "vocab", "kv_heads")
    found = load_study({**STUDY, "axes": {f"model.{name}": axis for name in fields},
                        "sample": {"method": "random", "count": 7}})
    numbers = [number for number, _ in combinations(found)]
    assert found.size == 7 and [*combinations(found)] == [*combinations(found)]
    assert len({*numbers}) == 7


def test_a_generator_with_a_bandwidth_is_no_file():
    found = load_study({**STUDY, "cluster": "fat-tree:k=4,bandwidth=400 Gb/s",
                        "axes": {"job.global_batch": [8]}})
    assert found.cluster["levels"][0]["bandwidth"] == 50e9


# ---------------------------------------------------------------- expressions


NAMES = {"x": 3, "y": 0.5, "name": "h100", "some": (1, 2), "table": {"a": 4},
         "huge": 10**400, "big": 1e200}


@pytest.mark.parametrize(("text", "value"), [
    ("1 + 2 * x - y / 2", 6.75), ("x // 2 == 1 and x % 2 == 1", True), ("not x > 3", True),
    ("1 < x <= 3 < 4", True), ("name in ('a100', 'h100')", True), ("x not in some", True),
    ("max(x, 7, y) + ceil(y) + floor(2.9)", 10), ("log2(8) * sqrt(4)", 6.0),
    ("x if y else 9", 3), ("'80 GiB' > '79 GiB'", True), ("'400 Gb/s' == 50e9", True),
    ("table.a + table['a'] + some[1]", 10), ("name == 'h100' or 1 / 0 > 1", True), ("-x", -3),
    ("'8'  == 8", False), ("max(some) * (x > 2)", 2), ("huge > big", True),
])
def test_expressions(text, value):
    assert Expression(text, tuple(NAMES)).value(NAMES) == value


@pytest.mark.parametrize("text", [
    "__import__('os')", "x.__class__", "().__class__", "open('f')", "[c for c in some]", "x := 1",
    "lambda: 1", "x ** 99", "1 << 99", "f'{x}'", "max(*some)", "max(key=x)", "{'a': 1}", "x; y", "",
    "await x", "z", "(" * 300 + "x" + ")" * 300, "x +" * 400 + "x", "b'a'", "1j", "x is y",
])
def test_what_is_no_such_expression_is_refused(text):
    with pytest.raises(InputError, match=r"^got .*allowed: "):
        Expression(text, tuple(NAMES)).value(NAMES)


@pytest.mark.parametrize("text", [
    "(0,) * 400000000 != 0", "some * 3", "some + some", "(x,) * x", "-name", "max(name, name)",
    "max(some, some)", "huge * 1", "big * big", "ceil(table)",
    "x / 0", "name * 3", "name + 'a'", "log2(0)", "table.b", "some[9]", "name < 3", "x.y"])
def test_what_cannot_be_worked_out_is_told(text):
    with pytest.raises(InputError):
        Expression(text, tuple(NAMES)).value(NAMES)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_message(text):
    with contextlib.suppress(InputError):
        Expression(text, tuple(NAMES)).value(NAMES)


def test_constraints_leave_points_out():
    found = points({**STUDY, "constraints": [
        "job.global_batch % devices == 0", "cluster.levels.leaf.bandwidth >= '20 GB/s'",
        "cluster.device.memory < '8 GiB' or job.global_batch > 8"]})
    assert [one.labels for one in found] == [
        (8, "25 GB/s", "4 GiB"), (16, "25 GB/s", "4 GiB"), (16, "25 GB/s", "8 GiB"),
        (32, "25 GB/s", "4 GiB"), (32, "25 GB/s", "8 GiB")]
    assert [one.number for one in found] == [2, 6, 7, 10, 11]


def test_a_point_that_is_not_valid_says_why():
    found = points({**STUDY, "axes": {"job.global_batch": [8, -1, "x"]}})
    assert [one.question is None for one in found] == [False, True, True]
    assert "job: global_batch: got -1; allowed: " in found[1].problem


# ---------------------------------------------------------------- prices


def test_a_bill_by_hand():
    """1,024 devices, leaf 50 GB/s, spine 25 GB/s: (1,024 x 1.5 + 1,024 x 0.5) ports / 64."""
    cluster = load_study({**STUDY, "cluster": {**CLUSTER, "devices": 1024}, "axes": {
        "job.global_batch": [16]}}).cluster
    levels = [CLUSTER["levels"][0],
              {"name": "leaf", "size": 32, "bandwidth": "50 GB/s", "latency": 0},
              {"name": "spine", "size": 8, "oversubscription": 4, "latency": 0}]
    found, = points({**STUDY, "cluster": {**cluster, "levels": levels}, "axes": {
        "job.global_batch": [16]}, "prices": {
            "device_hour": {"d": "1 + 0.5 * (devices > 1000)", "x": 9}, "adapter": 1000,
            "adapters": 2, "switch": 8766, "years": 1, "power": 0.1, "device_watts": 900,
            "adapter_watts": 25, "switch_watts": 1000, "pue": 1.5}})
    switches = 1024 * (50 + 12.5) / 50 / 64 + 1024 * 12.5 / 50 / 64
    assert switches_of(found.question.cluster, 64, 50e9) == switches == 24
    watts = 1.5 * (1024 * 900 + 2048 * 25 + 24 * 1000)
    assert found.bill.watts == pytest.approx(watts)
    assert found.bill.hour == pytest.approx(
        1024 * 1.5 + (2048 * 1000 + 24 * 8766) / 8766 + watts / 1000 * 0.1)


@pytest.mark.parametrize(("prices", "told"), [
    ({"device_hour": {"x": 1}}, "device_hour: got none for d"),
    ({"device_hour": "job.stack.name"}, "device_hour: got 'megatron-core' of"),
    ({"device_hour": "0 - devices"}, "device_hour: got -8 of"),
    ({"switch": 1, "switch_ports": 0}, "switch_ports: got 0"),
])
def test_a_price_that_is_none_is_told_at_the_point(prices, told):
    found, = points({**STUDY, "prices": prices, "axes": {"job.global_batch": [16]}})
    assert found.question is None and told in found.problem


def test_graphs_have_no_prices_of_switches():
    import nest

    cluster = nest.load_network("torus:dims=2x2,device=h100-sxm")
    names = {"cluster": cluster, "model": None, "job": None, "devices": cluster.size}
    with pytest.raises(InputError, match="for clusters with levels alone"):
        bill(PriceList(switch=1), names)
    assert bill(PriceList(device_hour=2), names).hour == 2 * cluster.size


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(("path", "value", "told"), [
    ("job", ..., "job: missing"),
    ("axes", {}, "axes: got {}; allowed: at least 1 entries"),
    ("axes", {"cluster.levels.leaf.bandwith": [1]},
     "unknown field (got 1); did you mean bandwidth?"),
    ("axes", {"cluster.levels.lef.bandwidth": [1]}, "got no entry 'lef'; did you mean leaf?"),
    ("axes", {"cluster.levels.5.bandwidth": [1]},
     "got no entry '5'; allowed: 0 to 1, or node, leaf"),
    ("axes", {"cluster.name.x": [1]}, "which has no fields"),
    ("axes", {"clutser.devices": [1]}, "did you mean cluster? allowed: fields of model, cluster,"),
    ("axes", {"job.batch": [1]}, "axes.job.batch: job: batch: unknown field"),
    ("axes", {"kind": {"a": {"x.y": 1}}}, "axes.kind: got the path 'x.y'"),
    ("axes", {"job.seq_len": []}, "values"),
    ("axes", {"job.seq_len": {"from": 1}}, "to: got None; allowed: a number"),
    ("axes", {"job.seq_len": {"from": 1, "to": "2 GB", "count": 2}}, "allowed: the unit of from"),
    ("axes", {"job.seq_len": {"from": 3, "to": 2, "count": 2}},
     "to: got 2; allowed: more than from"),
    ("axes", {"job.seq_len": {"from": 1, "to": 2, "count": 2, "step": 1}}, "allowed: one of them"),
    ("axes", {"job.seq_len": {"from": 0, "to": 2, "times": 2}}, "allowed: above 0 on scale log"),
    ("axes", {"job.seq_len": {"from": 1, "to": 9}}, "allowed: count, step or times, or a sample"),
    ("axes", {"job.seq_len": {"from": 1, "to": 10**6, "step": 1}}, "allowed: at most 10000"),
    ("axes", {"job.seq_len": {"from": 1, "to": 10**4, "step": 1},
              "model.layers": {"from": 1, "to": 10**4, "step": 1}},
     "allowed: at most 1000000, or a"),
    ("axes", {"job.seq_len": {"from": 1, "to": "1e999", "count": 2}}, "to: got '1e999'; allowed: "),
    ("axes", {"job.seq_len": {"from": 1, "to": 10**400, "count": 2}}, "to: got a whole number of"),
    ("axes", {"job.seq_len": {"from": 1e-300, "to": 1, "times": 2}}, "from: got 1e-300; allowed"),
    ("axes", {"model": ["nope-7b"]}, "axes.model: model: got 'nope-7b'"),
    ("constraints", ["devices <"], "constraints.0: got 'devices <'; allowed: an expression"),
    ("constraints", ["device > 1"], "the name device is not known; did you mean devices?"),
    ("sample", {"count": 0}, "sample.count: got 0; allowed: at least 1"),
    ("prices", {"device_hour": "x +"}, "prices.device_hour: got 'x +'"),
    ("prices", {"device_hour": -1}, "prices.device_hour: got -1; allowed: a number from 0 on"),
    ("prices", {"devicehour": 1}, "did you mean device_hour?"),
    ("objectives", ["money"], "objectives: got money without prices and train; allowed: money in "
     "a study with prices (such as prices: {device_hour: 2.5}) and train (such as train: "
     "{tokens: 15e12}), or other objectives"),
    ("objectives", ["tokens_per_joule"], "with prices (such as prices: {device_watts: 1000}), or"),
    ("model", ..., "study: model: missing; needed: a model of the study, or an axis model"),
    ("space", {"tpp": 3}, "study: space: tpp: unknown field (got 3); did you mean tp?"),
    ("space", {"tp": "x"}, "study: space: tp: got 'x'"),
    ("search", {"beyond_stack": 3}, "study: search: beyond_stack: got 3"),
    ("objectives", ["speed"], "allowed: 'tokens_per_s'"),
    ("groups", ["modle"], "groups: got 'modle'"),
    ("train", {"tokens": 0}, "train.tokens: got 0"),
    ("cluster", "nope", "cluster: got 'nope'"),
])
def test_a_mistake_has_one_message(path, value, told):
    with pytest.raises(InputError) as raised:
        load_study(changed(STUDY, path, value))
    assert told in str(raised.value) and str(raised.value).startswith("study: ")
    assert "Traceback" not in str(raised.value)


def test_a_study_is_frozen():
    study = load_study(STUDY)
    assert isinstance(study, Study) and load_study(study) is study
    with pytest.raises(Exception, match="frozen"):
        study.name = "x"


def test_a_model_missing_at_some_points_is_told_there():
    found = points({**changed(STUDY, "model", ...), "axes": {
        "kind": {"a": {"model": MODEL}, "b": {"job.seq_len": 64}}}})
    assert found[0].problem is None
    assert "model: missing; needed: a model of the study, or an axis model" in found[1].problem


def test_a_section_with_an_axis_is_judged_at_the_points():
    found = points({**STUDY, "space": {"tp": "x"}, "axes": {"space.tp": ["1..2", "y"]}})
    assert [one.question is None for one in found] == [False, True]


@pytest.mark.parametrize(("schema", "told"), [
    ("nest.plan/1.1", "a plan file; allowed: a study, which has job and axes and no schema "
     "(docs/sweeps.md); `nest evaluate {file}` prices a plan"),
    ("nest.sweep/1", "a sweep file; allowed: a study, which has job and axes and no schema "
     "(docs/sweeps.md)")])
def test_a_document_of_another_kind_is_told_in_one_line(tmp_path, schema, told):
    data = {"schema": schema, "parallelism": {"tp": 1}, "step_time_s": 1.0, "stages": []}
    path = put(tmp_path, data, "other.json")
    for source, where, file in ((path, str(path), str(path)), (data, "study", "FILE")):
        with pytest.raises(InputError) as raised:
            load_study(source)
        assert str(raised.value) == f"{where}: schema: got '{schema}', {told.format(file=file)}"


def test_fields_are_set_in_a_copy():
    data = {"a": [{"name": "n", "b": 1}], "device": "d"}
    assert with_field(data, "a.n.b", 2) == {"a": [{"name": "n", "b": 2}], "device": "d"}
    assert with_field(data, "a.-1", 3)["a"] == [3]
    assert with_field(data, "device.memory", 4)["device"] == {"base": "d", "memory": 4}
    assert with_field(data, "new.deep", 5)["new"] == {"deep": 5}
    assert data == {"a": [{"name": "n", "b": 1}], "device": "d"}


def test_the_best_hardware_is_asked_about_first():
    """Numbers and points are those of the order in which the axes say them."""
    found = load_study({**STUDY, "axes": {
        "job.global_batch": [8, 16], "cluster.levels.leaf.bandwidth": ["10 GB/s", "200 Gb/s"],
        "cluster.levels.leaf.latency": {"from": "10 us", "to": "30 us", "count": 3}}})
    asked = [*best_first(found)]
    assert sorted(asked, key=lambda one: one[0]) == [*combinations(found)] != asked
    assert [[choice.label for choice in choices] for _, choices in asked[:4]] == [
        [8, "200 Gb/s", "10 us"], [8, "200 Gb/s", "20 us"], [8, "200 Gb/s", "30 us"],
        [8, "10 GB/s", "10 us"]]
