"""`nest mcp`: ten tasks as an assistant does them, over the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from command_line import run
from job_logs import iteration

import nest
from nest.cli.listing import document
from nest.server import agents

pytestmark = pytest.mark.kernels

QUESTION = {
    "schema": "nest.question/1.0", "model": "llama3-8b",
    "cluster": {"base": "dgx-h100", "devices": 8},
    "job": {"global_batch": 16, "seq_len": 2048}, "space": {"pp": [1, 2], "tp": [1, 2, 4]},
}
WAY = {"outer_dp": 1, "micro_batch": 4, "stages": [
    {"layers": [0, 34], "devices": [0, 8], "dp_in": 4, "tp": 2, "zero": 1}]}
RUNS = """\
run_id,framework,model,n_layers,d_model,d_ff,n_heads,n_kv_heads,vocab,gated_mlp,seq_len,gpu,n_gpus,\
gpus_per_node,precision,tp,pp,dp,mbs,gbs_seqs,zero_stage,recompute,step_time_s
a,Megatron-LM,own 8B,32,4096,14336,32,8,128256,1,2048,H100,8,8,bf16,2,1,4,1,16,1,none,1.9
b,Megatron-LM,own 8B,32,4096,14336,32,8,128256,1,2048,H100,8,8,bf16,4,1,2,1,16,1,none,2.2
c,Megatron-LM,own 8B,32,4096,14336,32,8,128256,1,2048,H100,8,8,bf16,1,1,8,2,16,1,none,
"""
Call = Callable[..., Awaitable[Any]]


def played(task: Callable[[Call], Awaitable[None]]) -> None:
    """Play tasks against `nest mcp` as a process."""
    mcp = pytest.importorskip("mcp")

    async def play() -> None:
        own = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "nest.cli.main", "mcp", "--threads", "1"],
            env=dict(os.environ))
        async with mcp.Client(own) as client:
            async def call(name: str, /, **given: Any) -> Any:
                found = await client.call_tool(name, given)
                text = found.content[0].text
                return failed(text) if found.is_error else text

            await task(call)

    asyncio.run(play())


def failed(text: str) -> str:
    error = json.loads(text[text.index("{"):])
    assert error["schema"] == "nest.error/1" and error["error"] != "defect"
    return f"{error['error']}: {error['message']}"


def test_ten_tasks_over_the_protocol() -> None:
    async def tasks(call: Call) -> None:
        best = json.loads(await call("plan", question=QUESTION))
        assert best["plan"] == "plan-1" and best["optimal"] and "Expected" in best["report"]
        own = json.loads(await call("evaluate", question=QUESTION, configuration=WAY))
        assert own["step_time_s"] >= best["step_time_s"]
        assert "Bound by" in await call("explain", plan="plan-1")
        shown = await call("compare", question=QUESTION, planners=["nest", "manual"])
        assert "manual" in shown and "slower" in shown
        whole = nest.load_plan(json.loads(await call("document", plan="plan-1")))
        assert whole.step_time_s == best["step_time_s"]
        files = json.loads(await call("launch_files", plan="plan-1", target="megatron"))
        assert any("--tensor-model-parallel-size" in text for text in files.values())
        taught = json.loads(await call("learn", runs=RUNS))
        assert "Measured over priced" in taught["report"]
        again = json.loads(await call(
            "next_runs", question=QUESTION, learned=taught["learned"], runs=2))
        assert "Run next" in again["report"] and 1 <= len(again["plans"]) <= 2
        assert "expected" in again["report"]
        log = "\n".join(iteration(n, 1300.0 * best["step_time_s"]) for n in range(1, 30))
        why = await call("diagnose", plan="plan-1", log=log)
        assert why.startswith("The run is 30.0 % slower") and "Note  train.log: prints" in why
        assert any(row["name"] == "dgx-h100" for row in json.loads(
            await call("catalog", section="clusters")))
        assert "properties" in json.loads(await call("schema", name="question"))

    played(tasks)


def test_mistakes_are_documents_and_the_server_goes_on() -> None:
    async def tasks(call: Call) -> None:
        wrong = QUESTION | {"job": {"global_batch": 16, "seq_len": 2048, "presicion": "bf16"}}
        assert "presicion" in json.loads(await call("plan", question=wrong))["notes"][0]
        small = QUESTION | {"cluster": {"base": "dgx-h100", "devices": 1}, "space": {}}
        assert (await call("plan", question=small)).startswith("infeasible: ")
        assert "plan: got 'plan-9'; allowed: plan-1 " in await call("explain", plan="plan-9")
        assert "model: got" in await call("plan", question=QUESTION | {"model": "/etc/passwd"})
        assert "runs.csv" in await call("learn", runs="nothing,of,this\n1,2,3\n")
        assert "target" in await call("launch_files", plan=json.loads(
            await call("plan", question=QUESTION))["plan"], target="; rm -rf")

    played(tasks)


def test_plans_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MOST", 2)
    own = agents.Tools(document, 1)
    names = [own.evaluate(QUESTION, WAY)["plan"] for _ in range(3)]
    assert own.document(names[2])["schema"].startswith("nest.plan/")
    with pytest.raises(nest.InputError, match="allowed: plan-2, plan-3 "):
        own.document(names[0])


def test_without_the_package_the_command_names_it(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    _, error = run(capsys, "mcp", code=2)
    assert "pip install 'nest-planner[mcp]'" in error


def test_every_tool_says_what_it_does() -> None:
    found = agents.tools(agents.Tools(document, 1))
    assert set(found) == {"plan", "evaluate", "explain", "compare", "document", "launch_files",
                          "learn", "next_runs", "diagnose", "catalog", "schema"}
    assert all(len(call.__doc__ or "") > 30 for call in found.values())
