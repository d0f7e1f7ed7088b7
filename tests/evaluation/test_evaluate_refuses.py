"""Configurations that `evaluate` refuses with a message, never a traceback."""

from __future__ import annotations

import pytest

import nest


def test_a_stride_beyond_the_cluster() -> None:
    """One super-pipeline whose stride no replica uses, but that placement would look up."""
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-a100", devices=8)
    far = nest.Configuration.model_validate({
        "outer_dp": 1, "micro_batch": 1, "stride": 9,
        "stages": [{"layers": [0, 34], "devices": [0, 1]}]})
    with pytest.raises(nest.InputError, match="stride: got 9; allowed: at most the 8 devices"):
        nest.evaluate(model, cluster, nest.Job(global_batch=8, seq_len=512), far)


def test_a_stack_that_takes_all_memory() -> None:
    """The memory left was negative: every plan was short of it."""
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-a100", devices=8)
    job = nest.Job(global_batch=8, seq_len=512, stack={
        "base": "megatron-core", "workspace": "900 GiB"})
    whole = nest.Configuration.model_validate({
        "micro_batch": 1, "stages": [{"layers": [0, 34], "devices": [0, 1]}]})
    says = ("workspace 900 GiB, fragmentation 0.02 and memory_margin 0.1 leave nothing of the 80 "
            "GiB of a100-sxm-80gb")
    with pytest.raises(nest.InputError, match=says):
        nest.evaluate(model, cluster, job, whole)
    with pytest.raises(nest.InputError, match=says):
        nest.plan(model, cluster, job)


@pytest.mark.parametrize(("way", "message"), [
    ({"outer_dp": 1, "stride": 1}, "stages use 2 devices, but replicas start 1 apart"),
    ({"outer_dp": 2, "stride": 5}, "the last replica ends at device 10 of 8"),
])
def test_replicas_beyond_their_stride_or_the_cluster(way: dict[str, int], message: str) -> None:
    """The first ended in a traceback on links, the second on levels."""
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-a100", devices=8)
    configuration = nest.Configuration.model_validate({
        "micro_batch": 2, **way, "stages": [{"layers": [0, 34], "devices": [0, 2], "dp_in": 2}]})
    with pytest.raises(nest.InputError, match=message):
        nest.evaluate(model, cluster, nest.Job(global_batch=8, seq_len=512), configuration)
