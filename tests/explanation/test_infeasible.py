"""Where nothing fits: proved quickly, and what is said to help does."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

import nest
from nest.explanation.infeasible import _Probe
from nest.inputs import load_stack
from nest.search import compiled
from nest.search.query import Control, Query

pytestmark = pytest.mark.kernels
uncompiled = pytest.mark.kernels(uncompiled=True)
JOB = nest.Job(global_batch=256, seq_len=4096)


def refused(
    model: str, devices: int, job: nest.Job = JOB, cluster: str = "h100-spine-leaf",
    beyond_stack: bool = True, **bounds: object,
) -> nest.InfeasibleError:
    where = nest.load_cluster(cluster, devices=devices)
    with pytest.raises(nest.InfeasibleError) as caught:
        nest.plan(nest.load_model(model), where, job, nest.SearchSpace(**bounds),
                  beyond_stack=beyond_stack)
    return caught.value


def named(error: nest.InfeasibleError) -> int:
    """The number of devices that an error says is enough."""
    (count,) = re.findall(r"([\d,]+) devices \(fewer may do\) instead of", str(error))
    return int(count.replace(",", ""))


@pytest.mark.parametrize(("model", "cluster", "devices", "before", "enough", "beyond"), [
    ("llama3.1-405b", "h100-spine-leaf", 8, 64, 96, True),
    ("deepseek-v3", "dgx-h100", 128, 136, 144, True),
    ("deepseek-v3", "dgx-h100", 128, 152, 160, False)])
def test_the_devices_named_are_enough_and_no_fewer_are(
        model, cluster, devices, before, enough, beyond):
    job = JOB.replace(memory_margin=0)
    assert named(refused(model, devices, job, cluster, beyond)) == enough
    assert nest.plan(nest.load_model(model), nest.load_cluster(cluster, devices=enough),
                     job, beyond_stack=beyond).feasible
    refused(model, before, job, cluster, beyond)


def test_on_links_too_the_devices_named_are_enough():
    """How the links would go on does not matter: what fits depends on the groups alone."""
    job, model = JOB.replace(memory_margin=0), nest.load_model("llama3-70b")
    with pytest.raises(nest.InfeasibleError) as caught:
        nest.plan(model, nest.load_network("torus:dims=2x2"), job)
    enough = named(caught.value)
    assert enough == 40
    assert nest.plan(model, nest.load_network("torus:dims=5x8"), job).feasible
    with pytest.raises(nest.InfeasibleError):
        nest.plan(model, nest.load_network("torus:dims=4x8"), job)


@pytest.mark.parametrize("beyond", [False, True])
def test_of_several_types_the_one_with_the_least_memory_is_counted(beyond):
    """So many of it are enough, and more so where some of them have more memory."""
    model, nodes = nest.load_model("llama3-70b"), "4xh200-sxm"
    with pytest.raises(nest.InfeasibleError) as caught:
        nest.plan(model, nest.load_network(f"mixed:8xa100-sxm-40gb,{nodes}"), JOB,
                  beyond_stack=beyond)
    (count,) = re.findall(r"(\d+) a100-sxm-40gb devices \(fewer may do\)", str(caught.value))
    larger = nest.load_network(f"mixed:{int(count) // 8}x8xa100-sxm-40gb,{nodes}")
    assert larger.size == int(count)
    some = nest.SearchSpace(tp=4)  # one plan is enough, and found in a third of the time
    assert nest.plan(model, larger, JOB, some, beyond_stack=beyond).feasible


@uncompiled
@pytest.mark.parametrize("least", [10, 100, 130, 1000])
def test_the_devices_named_are_a_number_that_the_cluster_can_have(least, monkeypatch):
    """Of a cluster of the catalog, cut to 8 devices, numbers are those of the whole."""
    part = nest.load_cluster("h100-spine-leaf", devices=8)
    asked = []

    def enough(_: object, cluster: nest.Cluster) -> bool | None:
        asked.append(cluster)
        return True if cluster.size >= least else None

    monkeypatch.setattr(_Probe, "_any", enough)
    probe = _Probe(Query(None, part, JOB), Control())  # type: ignore[arg-type]
    texts = list(probe.more_devices(1.5))
    assert all(nest.load_cluster("h100-spine-leaf", devices=x.size) == x for x in asked)
    counts = [text.split()[0].replace(",", "") for text in texts]
    assert counts == [str({10: 16, 100: 128, 130: 160, 1000: 1024}[least])]


@pytest.mark.parametrize(("model", "devices"), [("llama3.1-405b", 8), ("deepseek-v3", 128)])
def test_memory_alone_rules_out_nearly_all(model, devices, monkeypatch):
    """What is searched are plans under the changes that are named; it was every limit of memory."""
    kernels, seconds = compiled.load()
    calls = []

    def counted(kernel):
        return lambda *given: calls.append(kernel) or kernel(*given)

    watched = kernels._replace(select=counted(kernels.select), alike=counted(kernels.alike))
    monkeypatch.setattr(compiled, "load", lambda *_: (watched, seconds))
    refused(model, devices)
    assert calls
    assert len(calls) < 30


@pytest.mark.parametrize(("beyond", "some"), [(True, {"pp", "zero"}), (False, {"pp", "tp"})])
def test_a_value_that_would_do_is_named(beyond, some):
    """Values are named in the space that was searched alone."""
    text = str(refused("llama3-70b", 64, beyond_stack=beyond, tp="1,2", pp="1..2", zero=0))
    found = re.findall(r"(tp|pp|zero) (\S+) instead of", text)
    assert {name for name, _ in found} >= some
    for name, values in found:
        bounds = {"tp": "1,2", "pp": "1..2", "zero": 0, name: values}
        cluster = nest.load_cluster("h100-spine-leaf", devices=64)
        assert nest.plan(nest.load_model("llama3-70b"), cluster, JOB,
                         nest.SearchSpace(**bounds), beyond_stack=beyond).feasible


def test_a_larger_batch_is_named_where_samples_are_few():
    one = nest.Job(global_batch=8, seq_len=4096)
    text = str(refused("llama3-70b", 32, one, tp=1, pp=1, cp=1))
    (batch,) = re.findall(r"a global batch of (\d+) instead of 8", text)
    cluster = nest.load_cluster("h100-spine-leaf", devices=32)
    assert nest.plan(nest.load_model("llama3-70b"), cluster, one.replace(global_batch=int(batch)),
                     nest.SearchSpace(tp=1, pp=1, cp=1), beyond_stack=True).feasible


def test_a_stack_that_can_run_nothing_says_why():
    text = str(refused("t5-11b", 16, JOB.replace(seq_len=512, stack="torchtitan"), "dgx-h100",
                       beyond_stack=False))
    assert text == ("no plan exists that torchtitan 0.3.0 can run: kind encoder-decoder: its "
                    "language models are decoders; allowed: decoder, profile. It would fit with "
                        "--beyond-stack")
    text = str(refused("gpt2-xl", 16, JOB.replace(seq_len=512), "dgx-h100", beyond_stack=False,
                       zero=3))
    assert text.startswith("no plan exists that Megatron-Core 0.16.1 can run: ")
    assert text.endswith("It would fit with zero 1 instead of 3, or --beyond-stack")


@pytest.mark.parametrize(("schedule", "stacks"), [
    ("dualpipe", "none"), ("zb-v", "torchtitan-eager")])
def test_a_schedule_that_the_stack_lacks_is_named_with_those_that_have_it(schedule, stacks):
    text = str(refused("llama3-8b", 16, cluster="dgx-h100", beyond_stack=False,
                       schedule=schedule, zero=1))
    assert text.startswith("no plan exists that Megatron-Core 0.16.1 can run: schedule "
                           f"{schedule}: its pipelines run 1F1B, or interleaved 1F1B")
    assert f"; stacks that have it: {stacks}. It would fit with " in text
    assert text.endswith("schedule 1f1b instead of " + schedule + ", or --beyond-stack")
    assert nest.plan(nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=16), JOB,
                     nest.SearchSpace(schedule=schedule, zero=1, tp=1), beyond_stack=True)


def test_a_bound_that_only_pipelines_rule_out_is_named():
    """torchtitan shards parameters, but not beside a pipeline."""
    text = str(refused("llama3-8b", 16, JOB.replace(stack="torchtitan"), "dgx-h100", pp=2, zero=3,
                       beyond_stack=False))
    assert "zero 3: with a pipeline FSDP2 keeps parameters gathered" in text
    assert "; stacks that have it: maxtext. It would fit with pp 1 instead of 2" in text


def test_what_has_a_bound_are_names_of_stacks():
    text = str(refused("llama3-8b", 16, JOB.replace(stack="torchtitan"), "dgx-h100", pp=1, zero=1,
                       beyond_stack=False))
    named = text.partition("; stacks that have it: ")[2].partition(". It would")[0].split(", ")
    assert len(named) > 5 and all(load_stack(name).name == name for name in named)


@pytest.mark.parametrize("where", ["h100-spine-leaf", "torus:dims=2x4"])
def test_the_time_limit_ends_the_explanation(where, monkeypatch):
    """The clock jumps once the search is done: it is proved, and no more is looked for."""
    from nest.explanation import infeasible

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("nest.search.progress.time", SimpleNamespace(
        perf_counter=lambda: clock.now))
    explain = infeasible.explain

    def late(*arguments: object) -> nest.InfeasibleError:
        clock.now = 1.0
        return explain(*arguments)

    monkeypatch.setattr(infeasible, "explain", late)
    cluster = (nest.load_network(where) if ":" in where else nest.load_cluster(where, devices=8))
    with pytest.raises(nest.InfeasibleError, match=r"no plan fits \(proved\)") as caught:
        nest.plan(nest.load_model("llama3.1-405b"), cluster, JOB, time_limit=0.5)
    assert caught.value.nearest == {"remedies": []}


@pytest.mark.parametrize(("beyond", "bounds"), [
    (False, {"vpp": 4, "tp": 1}), (True, {"vpp": 4, "tp": 1}),
    (True, {"vpp": 3, "pp": 4})])  # unequal chunks, which only the stack's part has
def test_interleaved_bounds_lack_memory_not_rules(beyond, bounds):
    error = refused("llama3-70b", 16, cluster="dgx-h100", beyond_stack=beyond, **bounds)
    assert str(error).startswith("no plan fits. The nearest miss is ")
    assert error.nearest["configuration"]["vpp"] == bounds["vpp"]
    assert any(" instead of " in text for text in error.nearest["remedies"])


@uncompiled
@pytest.mark.parametrize("beyond", [False, True])
def test_signatures_of_a_graph_are_listed_once(beyond, monkeypatch):
    """They take most of the time where many cuts are possible."""
    from nest.search import formulating

    layer = {"output_bytes": "1 MiB", "tp": {1: {
        "forward": "1 ms", "backward": "2 ms", "parameter_bytes": "1 GiB",
        "activation_bytes": "1 MiB"}}}
    towers = nest.load_profile({"name": "towers", "layers": [
        {"name": "text", "repeat": 8, **layer},
        {"name": "image", "inputs": [], "repeat": 8, **layer},
        {"name": "join", "inputs": ["text", "image"], **layer}]})
    calls, listed = [], formulating.signatures
    monkeypatch.setattr(
        formulating, "signatures", lambda *given: calls.append(given) or listed(*given))
    with pytest.raises(nest.InfeasibleError, match=r"\d+ devices \(fewer may do\) instead of 2"):
        nest.plan(towers, nest.load_cluster("dgx-h100", devices=2), JOB, nest.SearchSpace(zero=0),
                  beyond_stack=beyond)
    assert len(calls) == 1


@pytest.mark.parametrize("beyond", [False, True])
def test_a_bound_that_nothing_meets_is_named_where_freeing_it_is_not_enough(beyond):
    error = refused("llama3-70b", 8, JOB.replace(global_batch=4), "dgx-h100", beyond,
                    vpp=4, pp=7, tp=1)
    assert "Plans exist without the bound pp 7, or vpp 4, but none fits" in str(error)
    assert error.nearest == {"remedies": []}
