"""First picks of sweeps: the fastest by price that keeps the margin of its stack."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from picks import first_picks, main, tried  # noqa: E402

HEAD = ("run_id,source_group,model,n_layers,d_model,d_ff,gated_mlp,n_heads,vocab,seq_len,gpu,"
        "n_gpus,gpus_per_node,precision,framework,tp,pp,dp,sp,zero_stage,recompute,mbs,gbs_seqs,"
        "schedule,step_time_s,notes")


def table(folder: Path, name: str, rows: list[tuple[str, int, int, str]]) -> str:
    """Llama of 13B on 32 A100: name, tp, micro-batch, seconds."""
    path = folder / name
    path.write_text("\n".join([HEAD, *(
        f"{run},s,Llama-13B,40,5120,13824,1,40,32000,2048,A100-SXM,32,8,bf16,some code,{tp},1,"
        f"{32 // tp},1,1,none,{mbs},2048,none,{seconds},kernel: x" for run, tp, mbs, seconds in rows
    )]) + "\n", encoding="utf-8")
    return str(path)


def test_the_first_pick_leaves_the_margin_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # By price tp 1 is the fastest, which fits, but not with a fifth of the memory free.
    paths = [table(tmp_path, "ran.csv", [("a", 2, 1, "50"), ("b", 4, 1, "60"), ("c", 8, 1, "80")]),
             table(tmp_path, "oom.csv", [("d", 1, 1, ""), ("e", 1, 8, "")])]
    found = {one.name: one for one in tried(paths)}
    assert {name: one.plan.inputs.job.stack.name for name, one in found.items()} == dict.fromkeys(
        "abcde", "unknown")
    assert min(found.values(), key=lambda one: one.plan.step_time_s).name in "de"
    assert [found[n].plan.feasible for n in "abcde"] == [True, True, True, True, False]
    assert [found[n].keeps_margin for n in "abd"] == [True, True, False]
    (pick,) = first_picks(found.values()).values()
    assert pick is not None and (pick[0].name, pick[1]) == ("a", 50.0)
    monkeypatch.setattr("sys.argv", ["picks.py", *paths])
    main()
    said = capsys.readouterr().out
    assert "1 of 1 first picks run, 0.0 % slower" in said
    assert "called infeasible: 0.0 % of 3" in said and "called feasible: 50.0 % of 2" in said
