"""What a description says is trained: what is refused, and what changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

import nest
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.model import build_chain

LLAMA = nest.load_model("llama3-8b")
GPT2 = nest.load_model("gpt2-xl")  # tied embeddings, biases


@pytest.mark.parametrize(("model", "trainable", "message"), [
    (LLAMA, {}, "parts: missing; needed: parts that are trained, or lora"),
    (LLAMA, {"parts": ["heads"]}, r"parts\.0: got 'heads'"),
    (LLAMA, {"parts": ["router"]}, "parts: got router, which the model lacks"),
    (LLAMA, {"parts": ["layers"], "layers": "30..32"}, r"layers: got 30\.\.32; allowed: 0 to 31"),
    (GPT2, {"parts": ["head"]}, "parts: got head alone; allowed: embedding and head, or neither"),
    (LLAMA, {"lora": {"rank": 0}}, r"lora\.rank: got 0; allowed: at least 1"),
    (LLAMA, {"lora": {"rank": 8, "targets": ["q"]}}, r"lora\.targets: got 'q'; allowed: all-"),
    (LLAMA, {"lora": {"rank": 8, "targets": []}}, r"lora\.targets: got ''; allowed: all-linear"),
    (LLAMA, {"lora": {"rank": 8}, "frozen_precision": "int4"}, "frozen_precision: got 'int4'"),
])
def test_what_is_refused(model: nest.Model, trainable: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.replace(trainable=trainable)


@pytest.mark.parametrize(("model", "trainable", "message"), [
    (LLAMA, {"lora": {"rank": 8, "targets": ["q_a_proj"]}},
     r"llama3-8b: trainable\.lora\.targets: got q_a_proj, which no layer has; allowed: all-linear, "
     "linear_qkv"),
    (LLAMA, {"parts": ["biases"]}, "nothing would be trained"),
])
def test_what_a_chain_refuses(model: nest.Model, trainable: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_chain(model.replace(trainable=trainable))


def test_a_base_and_what_is_trained_of_it() -> None:
    lora = {"lora": {"rank": 16}}
    found = nest.load_model({"base": "llama3-70b", "trainable": lora})
    assert found == nest.load_model("llama3-70b").replace(trainable=lora)
    assert nest.load_model(found.as_dict()) == found
    # r (in + out) of seven products in each of 80 layers: 207 million at rank 16.
    widths = [8192 + 8192, 2 * (8192 + 1024), 8192 + 8192, 3 * (8192 + 28672)]
    chain = build_chain(found)
    trained = sum(chain.kinds[kind].trained for kind in chain.order)
    assert trained == 80 * 16 * sum(widths)
    with pytest.raises(InputError, match="got 'llama3-71b'"):
        nest.load_model({"base": "llama3-71b"})


def test_all_parts_are_the_whole_model() -> None:
    parts = ["embedding", "layers", "head"]
    whole, own = build_chain(LLAMA), build_chain(LLAMA.replace(trainable={"parts": parts}))
    assert own.kinds == whole.kinds and own.order == whole.order


def test_frozen_stages_behind_the_first_are_a_doubt() -> None:
    cluster = nest.load_cluster("dgx-h100", devices=8)
    job = nest.Job(global_batch=16, seq_len=1024, stack="megatron-bridge")

    def doubts(trainable: dict[str, Any], pp: int) -> bool:
        model = LLAMA.replace(trainable=trainable)
        plan = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, pp=pp))
        assert "frozen parameters" in plan.confidence.beyond
        return any("in front of what is trained" in doubt for doubt in plan.doubts)

    last = {"parts": ["layers", "head"], "layers": "28..31"}
    assert doubts(last, 4) and not doubts(last, 1)
    assert not doubts({"parts": ["layers"], "layers": "0..3"}, 4)
