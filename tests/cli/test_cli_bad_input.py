"""What the command line refuses: exit 2, one message that names what was given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from command_line import CLUSTER, JOB, Files, run
from descriptions import MODEL, changed, put

from nest.cli.main import app
from nest.cli.naming import OUTPUTS
from nest.cli.output import say


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize(("words", "parts"), [
    (["--devices", "0"], ["--devices: got 0"]),
    (["--devices", "-8"], ["devices", "got -8"]),
    (["--devices", "6", "--filling", "5"], ["filling: got 5", "1 to 4"]),
    (["--devices", "99999999999"], ["devices", "1000000"]),
    (["--devices", "many"], ["--devices", "'many'", "whole number"]),
    (["--devices", "1e3"], ["--devices", "'1e3'", "whole number"]),
    (["--global-batch", "0"], ["--global-batch: got 0"]),
    (["--global-batch", "-1"], ["--global-batch: got -1"]),
    (["--seq-len", "1000000000000"], ["--seq-len: got 1000000000000", "100000000"]),
    (["--precision", "int3"], ["precision", "'int3'", "bf16"]),
    (["--optimizer", "magic"], ["optimizer", "'magic'", "adam"]),
    (["--stack", "nothing"], ["stack", "'nothing'", "megatron-core"]),
    (["--nonsense", "1"], ["--nonsense"]),
    (["--optimizer", "lora"], ["--optimizer: got 'lora'; allowed: adam", "adapters: --lora-rank"]),
    (["--lora-alpha", "16"], ["No such option: --lora-alpha", "adapters: --lora-rank"]),
    (["--lora-rank", "0"], ["trainable: lora.rank: got 0; allowed: at least 1"]),
    (["--lora-rank", "4", "--lora-targets", "q"], ["lora.targets: got 'q'; allowed: all-linear, "]),
    (["--lora-targets", "q_proj"], ["trainable: lora.rank: missing"]),
    (["--trained", "vision"], ["trainable.parts: got vision, which the model lacks"]),
    (["--trained", "heads"], ["trainable: parts: got 'heads'"]),
    (["--frozen-precision", "nf4"], ["trainable: parts: missing; needed: parts that are trained"]),
    (["--freeze-vision"], ["No such option: --freeze-vision", "parts: --trained"]),
    (["--tp"], ["--tp"]),
    (["-o", "x.csv", "--ranks", "./x.csv"], ["--ranks: got './x.csv', which --output writes too"]),
    (["--map", "absent.svg", "-o", "../{here}/absent.svg"], ["--map: got ", "--output writes too"]),
    (["-o", ""], ["--output: got no name; allowed: a file to write"]),
    (["--ranks", "absent/x.csv"], ["--ranks absent/x.csv: cannot be written (no folder absent)"]),
])
@pytest.mark.parametrize("command", ["plan", "evaluate"])
def test_common_options(files, capsys, command, words, parts):
    words = [word.format(here=Path.cwd().name) for word in words]
    out, err = run(capsys, command, *files.words, *words, code=2)
    assert out == ""
    for part in parts:
        assert part in err


@pytest.mark.parametrize(("words", "parts"), [
    (["--tp", "-1"], ["tp", "'-1'"]),
    (["--tp", "4..2"], ["--tp: got '4..2'", "the smaller to the larger number, such as 2..4"]),
    (["--tp", ""], ["--tp: got ''; allowed: a whole number"]),
    (["--pp", "1000"], ["--pp: got 1000; allowed: 1 to 8, the devices of c"]),
    (["--tp", "3"], ["tp", "3", "heads 4"]),
    (["--pp", "0"], ["pp", "got 0"]),
    (["--zero", "4"], ["zero", "got 4", "0 to 3"]),
    (["--recompute", "half"], ["recompute", "'half'", "selective"]),
    (["--sp", "perhaps"], ["sp", "'perhaps'", "true or false"]),
    (["--cp", "0"], ["cp", "got 0"]),
    (["--cp", "3"], ["cp", "3", "128"]),
    (["--cp-comm", "ring"], ["--cp-comm: got", "'ring'", "p2p", "a2a"]),
    (["--shard", "all"], ["shard", "'all'", "dp_in"]),
    (["--recompute-modules", "attention"], ["--recompute-modules: got 'attention'", "core_attn"]),
    (["--recompute-modules", "norm+norm"], ["--recompute-modules: got 'norm+norm'"]),
    (["--recompute-layers", "0"], ["--recompute-layers: got 0"]),
    (["--vpp", "0"], ["vpp", "got 0"]),
    (["--group", "0"], ["group", "got 0"]),
    (["--group", "some"], ["group", "'some'", "1..16"]),
    (["--group", "4..200"], ["group", "got 4..200", "at most 100 numbers"]),
    (["--group", "9000"], ["--group: got 9000; allowed: 1 to 16, the samples of global_batch 16"]),
    (["--schedule", "zigzag"], ["--schedule: got 'zigzag'", "1f1b", "gpipe"]),
    (["--offload", "any"], ["--offload: got 'any'", "none, or parts joined by +"]),
    (["--top", "0"], ["top", "got 0", "1 to 100"]),
    (["--top", "101"], ["top", "got 101", "1 to 100"]),
    (["--top", "some"], ["--top", "'some'", "whole number"]),
    (["--time-limit", "0"], ["--time-limit", "'0'", "above 0"]),
    (["--time-limit", "-3"], ["--time-limit", "'-3'", "above 0"]),
    (["--time-limit", "inf"], ["--time-limit", "'inf'"]),
    (["--time-limit", "10 s"], ["--time-limit", "'10 s'", "seconds"]),
    (["--threads", "0"], ["threads", "got 0"]),
    (["--threads", "-2"], ["threads", "got -2"]),
    (["--space", "absent.yaml"], ["--space absent.yaml: no such file"]),
    (["--job", "absent.yaml"], ["--job absent.yaml: no such file"]),
    (["--without", "link:a-b"], ["--without: got 'a' in 'link:a-b'; allowed: node0 to node1"]),
])
def test_bounds_of_a_plan(files, capsys, words, parts):
    _, err = run(capsys, "plan", *files.words, *words, code=2)
    for part in parts:
        assert part in err


@pytest.mark.parametrize(("words", "parts"), [
    (["--tp", "0"], ["tp", "got 0"]),
    (["--tp", "two"], ["--tp", "'two'", "whole number"]),
    (["--tp", "3", "--outer-dp", "2"], ["tp 3", "heads 4"]),
    (["--tp", "16"], ["16", "more than the cluster's 8"]),
    (["--pp", "3"], ["pp 3", "does not divide the 8 devices"]),
    (["--pp", "8"], ["pp: got 8", "1 to 7"]),
    (["--pp", "-2"], ["pp", "got -2"]),
    (["--outer-dp", "16"], ["outer_dp 16", "more than the cluster's 8"]),
    (["--mbs", "0"], ["mbs", "got 0"]),
    (["--mbs", "3"], ["micro_batch 3", "global_batch 16"]),
    (["--mbs", "1", "--micro-batch", "1"], ["mbs", "one of them"]),
    (["--zero", "9"], ["zero", "got 9", "at most 3"]),
    (["--ep", "2"], ["ep 2", "experts"]),
    (["--sp"], ["sp needs tp above 1"]),
    (["--recompute", "half"], ["recompute", "'half'"]),
    (["--recompute-modules", "attention"], ["--recompute-modules: got 'attention'", "core_attn"]),
    (["--recompute-modules", "norm,moe"], ["--recompute-modules: got 'norm,moe'", "joined by +"]),
    (["--recompute-modules", "norm"], ["--recompute-modules: got norm", "selective only"]),
    (["--recompute", "selective", "--recompute-modules", "moe"], ["moe is in no layer"]),
    (["--recompute-layers", "2"], ["--recompute-layers: got 2", "full only"]),
    (["--recompute", "full", "--recompute-layers", "0"], ["--recompute-layers: got 0"]),
    (["--cp", "0"], ["cp", "got 0"]),
    (["--cp", "8", "--seq-len", "24"], ["2 x cp 8 does not divide", "24"]),
    (["--cp-comm", "a2a"], ["cp_comm a2a needs cp above 1"]),
    (["--cp", "2", "--cp-comm", "ring"], ["--cp-comm: got 'ring'"]),
    (["--shard", "dp_in"], ["shard dp_in needs zero above 0"]),
    (["--shard", "some"], ["shard", "'some'"]),
    (["--vpp", "0"], ["vpp", "got 0"]),
    (["--vpp", "2"], ["vpp", "2"]),
    (["--pp", "2", "--vpp", "3"], ["pp 2 x vpp", "7"]),
    (["--pp", "2", "--schedule", "zigzag"], ["schedule", "'zigzag'"]),
    (["--pp", "2", "--schedule", "interleaved"], ["interleaved needs vpp and pp above 1"]),
    (["--configuration", "absent.yaml"], ["--configuration absent.yaml: no such file"]),
    (["--layout", ""], ["--layout: got ''; allowed: layers of all chunks"]),
])
def test_degrees_of_evaluate(files, capsys, words, parts):
    _, err = run(capsys, "evaluate", *files.words, *words, code=2)
    for part in parts:
        assert part in err


def test_arguments(files, capsys):
    for words, parts in (
        (["plan"], ["got none", "MODEL CLUSTER"]),
        (["plan", files.model], ["MODEL CLUSTER"]),
        (["plan", *files.words, "more"], ["more", "MODEL CLUSTER"]),
        (["plan", files.model, files.cluster], ["--global-batch", "--seq-len"]),
        (["evaluate"], ["got none"]),
        (["evaluate", "llama2-7b"], ["'llama2-7b' alone", "PLAN.json"]),
        (["plan", "llama9", files.cluster, *JOB], ["'llama9'", "llama3-70b"]),
        (["plan", files.model, "h200", *JOB], ["'h200'", "nest list clusters"]),
        (["plan", files.cluster, files.model, *JOB], ["cluster.yaml", "got a cluster"]),
        (["plan", files.model, files.model, *JOB], ["model.yaml", "got a model"]),
        (["plan", files.path("no.yaml"), files.cluster, *JOB], ["MODEL ", "no.yaml: no such file"]),
        (["list", "planets"], ["'planets'", "models, clusters"]),
        (["schema", "planets"], ["'planets'", "plan, model"]),
        (["fly"], ["fly"]),
    ):
        out, err = run(capsys, *words, code=2)
        assert out == ""
        for part in parts:
            assert part in err, words


def test_files(files, capsys):
    words = ["plan", files.model, files.cluster]
    for data, parts in (
        ({"global_batch": 8, "seq_len": 8, "bach": 1}, ["bad.yaml", "bach", "unknown field"]),
        (CLUSTER, ["bad.yaml", "got a cluster description"]),
        ({"global_batch": "lots", "seq_len": 8}, ["bad.yaml", "global_batch", "'lots'"]),
        ({"global_batch": 8, "seq_len": 8, "stack": {"base": "x"}},
         ["bad.yaml: stack.base: got 'x'; allowed: a name in the catalog"]),
        ("a: [1", ["bad.yaml", "malformed YAML"]),
        ("", ["bad.yaml", "is empty"]),
    ):
        bad = str(put(files.folder, data, "bad.yaml"))
        _, err = run(capsys, *words, "--job", bad, code=2)
        for part in parts:
            assert part in err
    odd = changed(CLUSTER, "levels.1.size", 2)
    odd = str(put(files.folder, {**odd, "devices": 12}, "odd.yaml"))
    _, err = run(capsys, "plan", files.model, odd, *JOB, code=2)
    assert "odd.yaml: devices: got 12; allowed: 8 = 4 x 2" in err
    bad = str(put(files.folder, changed(MODEL, "layers", 0), "empty.yaml"))
    _, err = run(capsys, "plan", bad, files.cluster, *JOB, code=2)
    assert "empty.yaml: layers: got 0" in err


def test_long_names_and_what_is_no_number(files, capsys):
    for words, part in ((["--job", "x" * 5000], "--job xxx"),
                        (["--expert-imbalance", "much"], "got 'much'; allowed: a number")):
        _, err = run(capsys, "plan", *files.words, *words, code=2)
        assert part in err


def test_a_field_of_a_file_is_told_of_the_file_though_options_are_given(files, capsys):
    job = str(put(files.folder, {"global_batch": -1, "seq_len": 0}, "job.yaml"))
    _, err = run(capsys, "plan", files.model, files.cluster, "--job", job, "--seq-len", "-3",
                 code=2)
    assert err == (f"nest: error: --job {job}: global_batch: got -1; allowed: at least 1\n"
                   "  --seq-len: got -3; allowed: at least 1\n")


READ = {"--job", "--profile", "--space", "--configuration", "--hosts", "--token-file", "--folder",
        "--annotations", "--messages", "--answers", "--instances", "--learned", "--memory",
        "--failures"}
"""Options of files and folders that are read, or are a store of their own."""


def test_options_of_files_are_known_as_read_or_written():
    """Those that are written are refused where two have one file."""
    found, left = set(), [typer.main.get_command(app)]
    while left:
        command = left.pop()
        left += getattr(command, "commands", {}).values()
        found |= {option for one in command.params for option in one.opts
                  if option.startswith("--") and re.match("FILE|DIR|FOLDER", str(one.metavar))}
    assert found == READ | {*OUTPUTS}


@pytest.mark.parametrize("words", [
    ["simulate", "plan.json", "--trace", "linked.json"],
    ["evaluate", "plan.json", "-o", "./plan.json"],
    ["evaluate", "plan.json", "--ranks", "plan.json"],
    ["replan", "plan.json", "--without", "node0", "-o", "plan.json"],
    ["plan", "llama2-7b", "dgx-a100", "--job", "plan.json", "-o", "linked.json"],
])
def test_no_output_replaces_an_input(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text("{}", encoding="utf-8")
    Path("linked.json").symlink_to("plan.json")
    _, err = run(capsys, *words, code=2)
    assert f"got {words[-1]!r}, which the command reads; allowed: another file" in err
    assert Path("plan.json").read_text(encoding="utf-8") == "{}"


def test_marks_of_direction_are_escaped_in_messages(capsys):
    say("a\u202eb\u2066c\x1b[31m\u2028")
    assert capsys.readouterr().err == "a\\u202eb\\u2066c\\x1b[31m\\u2028\n"
