"""What is kept in the memory of the hosts: bytes and seconds worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nest
from nest.costs.compute import Machine
from nest.costs.host import LINK_EFFICIENCY, UPDATE_EFFICIENCY, kept_away, update_seconds, waiting
from nest.costs.memory import recipe
from nest.evaluation.even import even_configuration
from nest.inputs import Job, load_cluster, load_device, load_model, load_stack
from nest.inputs.offload import Offload
from nest.model import build_chain
from nest.model.legality import offload_problem

DENSE = {
    "name": "dense", "layers": 4, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 1024,
    "gated": True, "vocab": 128, "tied_embeddings": False, "norm": "rmsnorm", "bias": False,
}
EXPERTS = {**DENSE, "name": "experts", "moe": {"experts": 4, "top_k": 2, "ffn": 128}}
S, H = 512, 256
DEVICE: dict[str, Any] = {
    "name": "d", "memory": "8 GiB", "memory_bandwidth": "1000 GB/s", "memory_efficiency": 1.0,
    "launch_overhead": "0 us", "peak_flops": {"bf16": "100 TFLOP/s"},
    "host_link": "10 GB/s", "host_memory": "64 GiB", "host_memory_bandwidth": "50 GB/s",
}
LEVELS = [{"name": "node", "size": 2, "bandwidth": "100 GB/s", "latency": "3 us"}]


def job(stack: str = "megatron-core", **changes: Any) -> Job:
    return Job(global_batch=8, seq_len=S, stack=load_stack(stack).replace(**changes))


def priced(
    model: dict[str, Any] = DENSE, device: dict[str, Any] | None = None, batch: Job | None = None,
    **degrees: Any,
) -> nest.Plan:
    where = load_cluster({"name": "c", "device": device or DEVICE, "levels": LEVELS})
    model, batch = load_model(model), batch or job()
    return nest.evaluate(model, where, batch, even_configuration(model, where, batch, **degrees))


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(("text", "same"), [
    ("none", "none"), ("optimizer", "optimizer"), ("optimizer:1", "optimizer"),
    ("optimizer:.50", "optimizer:0.5"), ("layers:12", "layers:12"),
    ("moe_act+optimizer:0.25+expert_fc1", "optimizer:0.25+expert_fc1+moe_act"),
    ("checkpoints+optimizer", "optimizer+checkpoints"), ("checkpoints", "checkpoints"),
    ("layers:3+optimizer", "optimizer+layers:3"), ("attn_proj+core_attn", "core_attn+attn_proj"),
])
def test_a_text_has_one_form(text, same):
    assert str(Offload.of(text)) == same
    assert Offload.of(same) == Offload.of(text)


@pytest.mark.parametrize("text", [
    "", "all", "none+optimizer", "optimizer+optimizer", "optimizer:0", "optimizer:1.5",
    "optimizer:", "optimizer:x", "layers", "layers:0", "layers:-1", "layers:2+core_attn",
    "checkpoints+layers:2", "checkpoints+core_attn", "checkpoints:2", "checkpoints+checkpoints",
    "attn_proj", "core_attn:1", "core_attn+", None, 3, ["optimizer"],
])
def test_a_text_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="allowed: none, or parts joined by"):
        Offload.of(text)


# ---------------------------------------------------------------- checkpoints of recompute


def test_inputs_of_layers_that_run_again_leave_the_device():
    fast, idle = ({**DEVICE, "host_link": rate} for rate in ("100000 GB/s", "1 MB/s"))
    plain, moved, slow = (priced(device=device, recompute="full", offload=offload) for
                          device, offload in ((DEVICE, "none"), (fast, "checkpoints"),
                                              (idle, "checkpoints")))
    each = S * H * 2.0
    before, behind = plain.stages[0], moved.stages[0]
    assert behind.host_bytes == 4 * each
    # Of four layers' inputs that of the layer that runs again and of the next one are there.
    saved = before.memory_bytes.activations - behind.memory_bytes.activations
    assert saved == pytest.approx(2 * each)
    assert moved.step_time_s == pytest.approx(plain.step_time_s)
    # 4 samples of a replica, 4 layers, there and back over a link that takes much longer.
    away = 4 * 4 * 2 * each / (1e6 * LINK_EFFICIENCY)
    assert slow.step_time_s == pytest.approx(away, rel=1e-2)
    assert not moved.problems


def test_checkpoints_need_full_recompute():
    with pytest.raises(nest.InputError, match="recompute none with offload checkpoints; allow"):
        priced(offload="checkpoints")


@pytest.mark.parametrize(("stack", "runs"), [
    ("fsdp", True), ("deepspeed", True), ("megatron-core", False), ("megatron-bridge", False),
    ("torchtitan", False), ("llm-foundry", False), ("maxtext", True)])
def test_which_stacks_move_checkpoints(stack, runs):
    plan = priced(batch=job(stack), recompute="full", offload="checkpoints", zero=0)
    found = [one for one in plan.not_runnable if one.field == "offload_modules"]
    assert (not found) is runs, (stack, found)


# ---------------------------------------------------------------- the optimizer


def test_bytes_of_the_optimizer_leave_the_device():
    # bf16 with fp32 gradients: 2 + 4 + 12 bytes a parameter, of which 12 leave (10 with
    # master_remainders); the host holds 12 and a copy of the gradient, 4.
    plain = priced(zero=1, outer_dp=2).stages[0]
    for share in (1.0, 0.25):
        moved = priced(zero=1, outer_dp=2, offload=f"optimizer:{share}").stages[0]
        own = plain.memory_bytes.optimizer / 10.0
        assert moved.memory_bytes.optimizer == pytest.approx((1.0 - share) * 10.0 * own)
        assert moved.host_bytes == pytest.approx(share * 16.0 * own)
        assert moved.memory_bytes.gradients == plain.memory_bytes.gradients
        assert moved.host_limit_bytes == 64 * 2**30
    assert plain.host_bytes == 0.0 and plain.host_limit_bytes is None


@pytest.mark.parametrize(("overlap", "share"), [(True, 1.0), (False, 1.0), (True, 0.01)])
def test_seconds_of_the_update_by_hand(overlap, share):
    # 10**9 parameters. To the host 4 bytes each, back 2, over 10 GB/s x 0.85; the host reads and
    # writes 4 + 8 + 16 bytes at 50 GB/s x 0.5. The device moves 4 + 8 + 16 + 2 bytes at 1 TB/s.
    stack = load_stack("megatron-core").replace(overlap_offload=overlap, memory_derate=1.0)
    machine = Machine(load_device(DEVICE), stack, "bf16")
    n = np.array([1e9])
    down, host, up = 4.0 / 8.5, 28.0 / 25.0, 2.0 / 8.5
    wanted = share * (max(down, host, up) if overlap else down + host + up)
    found = update_seconds(machine, recipe(job()), n, share)
    assert found == pytest.approx([max(wanted, (1.0 - share) * 30.0 / 1000.0)])
    assert (LINK_EFFICIENCY, UPDATE_EFFICIENCY) == (0.85, 0.5)


# ---------------------------------------------------------------- activations


def test_bytes_of_modules_leave_the_device():
    # A token of a layer, bf16. qkv_linear: input of norm and product, 2 h each; core_attn: query
    # h, keys and values h / 2 each; attn_proj: its input h.
    tokens, layers = S, 4
    held = priced().stages[0].memory_bytes.activations
    moved = {"qkv_linear": 2 * H, "core_attn": 2 * H, "core_attn+attn_proj": 3 * H}
    for text, elements in moved.items():
        stage = priced(offload=text).stages[0]
        assert stage.host_bytes == pytest.approx(layers * tokens * 2 * elements), text
        # Of one layer what moves is on its way, and of the layer at work everything is there: more
        # than the 2 bytes a logit that the loss works with.
        assert held - stage.memory_bytes.activations == pytest.approx(
            (layers - 2) * tokens * 2 * elements + 2.0 * S * 128), text


def test_bytes_of_modules_of_experts():
    # A token takes 2 of 4 experts: two copies. expert_fc1: h each; moe_act: 2 ffn each.
    # mlp_norm: h once, as the norm in front of experts stands alone.
    for text, elements in (("expert_fc1", 2 * H), ("moe_act", 2 * 2 * 128), ("mlp_norm", H)):
        stage = priced(EXPERTS, offload=text).stages[0]
        assert stage.host_bytes == pytest.approx(4 * S * 2 * elements), text


def test_bytes_of_layers_leave_the_device():
    one = build_chain(load_model(DENSE))
    assert kept_away(one, "layers:3").layers == 0.75
    full = priced(offload="qkv_linear").stages[0]
    three, two = (priced(offload=f"layers:{n}").stages[0].host_bytes for n in (3, 2))
    assert three == pytest.approx(1.5 * two) and three > full.host_bytes


def test_recompute_leaves_less_to_move():
    plan = priced(offload="qkv_linear", recompute="selective", recompute_modules=("norm",))
    assert plan.stages[0].host_bytes == pytest.approx(4 * S * 2 * H)  # the input of the norm alone


def test_a_pass_waits_for_what_computing_does_not_hide():
    machine = Machine(load_device(DEVICE), load_stack("megatron-core"), "bf16")
    assert waiting(machine, np.array([8.5e9]), np.array([0.25])) == pytest.approx([0.75])
    assert waiting(machine, np.array([8.5e9]), np.array([1.5])) == pytest.approx([0.0])
    plain = priced().stages[0].time_s
    quick, slow = (
        priced(device={**DEVICE, "host_link": link}, offload="core_attn").stages[0].time_s
        for link in ("10 GB/s", "0.1 GB/s"))
    assert quick == plain and slow.total == pytest.approx(plain.total + slow.offload)
    # Both ways 2 h elements of a token over 0.1 GB/s x 0.85, less the layer's passes; four layers.
    # The ends of the model, which take some of the stage's time, hide nothing.
    moving = 2 * 4 * S * 2 * 2 * H / 0.085e9
    assert moving - plain.forward - plain.backward < slow.offload < moving


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("text", "changes", "told"), [
    ("layers:4", {}, "allowed: below the 4 transformer layers"),
    ("moe_act", {}, "moe_act is in no layer of dense; allowed: qkv_linear, core_attn, attn_proj"),
    ("layers:1", {"pp": 2}, "pp 2 with offload layers:1; allowed: 1"),
    ("layers:1", {"recompute": "selective"}, "recompute selective with offload layers:1"),
    ("core_attn", {"recompute": "full"}, "recompute full with offload core_attn"),
])
def test_what_cannot_be_kept_is_refused(text, changes, told):
    with pytest.raises(nest.InputError, match=told):
        priced(offload=text, **changes)


def test_a_device_without_figures_of_its_host_is_refused():
    device = {**DEVICE, "host_link": None, "host_memory": None}
    where = load_cluster({"name": "c", "device": device, "levels": LEVELS})
    told = offload_problem(build_chain(load_model(DENSE)), where, "optimizer")
    assert told == ("offload: got optimizer, but host_link, host_memory of device d are not known; "
                    "needed: a device file that has them")
    with pytest.raises(nest.InputError, match="host_link"):
        priced(device=device, offload="optimizer")
    with pytest.raises(nest.InputError, match="host_link"):
        nest.plan(load_model(DENSE), where, job(), nest.SearchSpace(offload="none,optimizer"))


def test_too_little_memory_of_the_host_is_a_shortage():
    plan = priced(device={**DEVICE, "host_memory": "1 MiB"}, zero=1, offload="optimizer")
    assert not plan.feasible
    assert "of the host's memory for each device; it has 1 MiB" in plan.problems[0]


# ---------------------------------------------------------------- what software can run


@pytest.mark.parametrize(("stack", "changes", "field"), [
    ("megatron-core", {"zero": 0, "offload": "optimizer"}, "zero"),
    ("megatron-core", {"zero": 1, "outer_dp": 2, "offload": "optimizer:0.5"}, None),
    ("megatron-core", {"offload": "layers:2"}, None),
    ("megatron-core", {"pp": 2, "offload": "core_attn+attn_proj"}, None),
    ("deepspeed", {"zero": 2, "outer_dp": 2, "offload": "optimizer"}, None),
    ("deepspeed", {"zero": 2, "outer_dp": 2, "offload": "optimizer:0.5"}, "offload_optimizer"),
    ("deepspeed", {"zero": 3, "outer_dp": 2, "offload": "optimizer:0.5"}, None),
    ("deepspeed", {"offload": "core_attn"}, "offload_modules"),
    ("torchtitan", {"offload": "optimizer"}, "offload_optimizer"),
    ("megatron-2021", {"offload": "layers:1"}, "offload_layers"),
])
def test_what_stacks_can_keep(stack, changes, field):
    found = [one.field for one in priced(batch=job(stack), **changes).not_runnable]
    assert found == ([] if field is None else [field])
