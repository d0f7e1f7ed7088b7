"""Layers that read selected or compressed keys, latent experts and mixed residuals, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.inputs import Job, Model, load_cluster, load_model
from nest.model import build_chain, tensor_bytes
from nest.model.operators import Layer, Operator

MODELS = json.loads(
    (Path(__file__).parents[1] / "inputs" / "models.json").read_text(encoding="utf-8"))
JOB = Job(global_batch=16, seq_len=8192)


def published(name: str) -> Model:
    return load_model(MODELS[name]["config"])


def layer(name: str, number: int) -> tuple[Layer, dict[str, Operator]]:
    chain = build_chain(published(name))
    first = next(n for n, kind in enumerate(chain.order) if chain.kinds[kind].repeated)
    found = chain.kinds[chain.order[first + number]]
    return found, {op.name: op for op in found.operators}


def pairs(op: Operator, seq_len: int) -> float:
    """Queries times keys of one head, in units of its full width."""
    return seq_len * seq_len * op.seen(seq_len) * op.attention_width


def test_compressed_attention_sees_a_window_and_entries_in_front() -> None:
    """DeepSeek-V4-Flash: 64 heads of 512, window 128, entries of 4 (512 of them) or of 128."""
    s, width = 8192, 2.0 * 64 * 512
    within = 128 * s - 128**2 / 2  # pairs of a token with itself and the 127 before
    for number, ratio, entries in ((2, 4, 512), (3, 128, 10**9)):
        _, ops = layer("DeepSeek-V4-Flash", number)
        assert pairs(ops["attention_core"], s) == pytest.approx(within * width)
        # Token i has i / r entries in front of it, and reads at most so many of them.
        seen = np.minimum(np.arange(s) / ratio, entries).sum()
        assert pairs(ops["compressed_core"], s) == pytest.approx(seen * width, rel=1e-3)
        assert ("index_scores" in ops) == (ratio == 4)
    _, plain = layer("DeepSeek-V4-Flash", 0)
    assert "compressed_core" not in plain
    # All index heads score the entries in front of a token, 64 x 128 wide.
    scores = layer("DeepSeek-V4-Flash", 2)[1]["index_scores"]
    assert pairs(scores, s) == pytest.approx(s * s / 2 / 4 * 64 * 128)


def test_streams_are_kept_and_handed_over() -> None:
    chain = build_chain(published("DeepSeek-V4-Flash"))
    one = layer("DeepSeek-V4-Flash", 4)[0]
    assert one.streams == 4 and one.hidden == 4096
    sizes = {tensor_bytes(chain, JOB, tensor) for tensor in chain.tensors[:40]}
    assert sizes == {4 * 8192 * 4096 * 2.0}
    blocks = build_chain(published("Kimi-K3")).tensors
    assert [blocks[n].copies for n in (-1, -13)] == [9, 8]  # of 93 layers, in blocks of 12


def test_latent_experts_are_sent_and_computed_at_their_width() -> None:
    found, ops = layer("Nemotron-3-Super-120B-A12B", 1)
    assert found.sent == 1024 and found.hidden == 4096
    assert (ops["expert_up"].depth, ops["expert_down"].width) == (1024, 1024)
    assert (ops["latent_down"].width, ops["latent_up"].width) == (1024, 4096)
    assert ops["shared_up"].depth == 4096
    wide = published("Nemotron-3-Super-120B-A12B")
    assert wide.moe is not None
    plain = wide.replace(moe=wide.moe.replace(latent=0))
    cluster = load_cluster("dgx-b200", devices=64)
    sent = [evaluate(model, cluster, JOB.replace(global_batch=64), even_configuration(
        model, cluster, JOB.replace(global_batch=64), ep=8)).breakdown_s.ep
        for model in (wide, plain)]
    assert sent[1] == pytest.approx(4 * sent[0], rel=0.15)  # but for latencies


def test_a_shared_choice_has_no_indexer_and_reads_as_many_keys() -> None:
    own, shared = layer("GLM-5.3", 2)[1], layer("GLM-5.3", 3)[1]
    assert "index_scores" in own and "index_scores" not in shared
    assert own["attention_core"].window == shared["attention_core"].window == 2048
    dense, sparse = layer("MiniMax-M3", 0)[1], layer("MiniMax-M3", 3)[1]
    assert dense["attention_core"].window is None and "index_scores" not in dense
    assert sparse["attention_core"].window == 16 * 128 and "index_weights" not in sparse


def test_two_mixers_side_by_side_share_their_input() -> None:
    found, ops = layer("Falcon-H1-7B", 0)
    assert [op.name for op in found.operators].count("projection_input") == 1
    assert {"attention_core", "recurrence", "mixer_output"} <= {*ops}
    assert ops["attention_residual"].forward_elements == 4 * 3072


def test_every_plan_with_such_layers_says_what_was_never_measured() -> None:
    cluster = load_cluster("dgx-b200", devices=64)
    for name, part in (("DeepSeek-V4-Flash", "compressed attention"),
                       ("Nemotron-3-Super-120B-A12B", "latent experts"),
                       ("GLM-5.3", "sparse attention")):
        model, job = published(name), JOB.replace(global_batch=64)
        plan = evaluate(model, cluster, job, even_configuration(model, cluster, job, ep=8))
        assert plan.evidence is not None and plan.evidence.word == "extrapolated"
        assert f"layers with {part}" in " ".join(str(plan).split())
        assert plan.runnable is None
