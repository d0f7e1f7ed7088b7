"""`nest read` of the files that `nest export` writes for each target: round trips, places."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.frameworks.launchers import LAUNCHERS
from nest.frameworks.torchtitan.write import TOKENS
from nest.inputs import load_configuration, load_job
from nest.inputs.files import parse_yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "stacks"))
from exported_plans import PLANS  # noqa: E402
from framework_plans import Case, runnable  # noqa: E402

COUNT = int(os.environ.get("NEST_READ_PLANS", "24"))
"""Random plans of a round trip."""
FILES = {"deepspeed": "ds_config.json", "torchtitan": "plan_config.py",
         "torchtitan-toml": "plan.toml", "fsdp2": "parallelize.py",
         "megatron-bridge": "plan_recipe.py", "maxtext": "plan.yml"}


def written(folder: Path, files: dict[str, str]) -> Path:
    """The script of exported files, in a folder of their own."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "launch.sh"


def unsaid(case: Case, stack: str) -> dict[str, Any]:
    """What the files of a target do not say."""
    if stack == "megatron-deepspeed":  # its arguments describe all but the tokenizer
        return {"vocab": case.model.vocab}
    if stack == "maxtext":
        return {}
    given: dict[str, Any] = {"model": case.model}
    if stack == "deepspeed":
        given["seq_len"] = case.job.seq_len
    if stack.startswith("torchtitan"):  # a model's own function has its converters
        given["precision"] = case.job.precision
    return given


@pytest.mark.parametrize(("stack", "target", "share"), [
    ("fsdp", "fsdp2", 3), ("torchtitan", "torchtitan", 3), ("torchtitan", "torchtitan-toml", 3),
    ("torchtitan-eager", "torchtitan", 8), ("deepspeed", "deepspeed", 3),
    ("megatron-deepspeed", "deepspeed", 3), ("megatron-bridge", "megatron-bridge", 3),
    ("maxtext", "maxtext", 3)])
def test_exported_plans_are_read_back(
    stack: str, target: str, share: int, tmp_path: Path
) -> None:
    """The step time of what is read is that of the plan, to the last digit.

    With ``NEST_READ_PLANS`` set, of as many plans; else of a share of the default number.
    """
    count = COUNT if "NEST_READ_PLANS" in os.environ else COUNT // share
    for number, case in enumerate(runnable(stack, count, target)):
        assert case.plan is not None and case.files is not None
        script = written(tmp_path / str(number), case.files)
        found = nest.read(script, **unsaid(case, stack))
        assert found.devices == case.world
        priced = nest.evaluate(found.model, case.cluster, found.job, found.configuration)
        assert priced.step_time_s == case.plan.step_time_s, case.plan.inputs
        texts = {name: parse_yaml(text) for name, text in found.files.items()}
        assert nest.load_model(texts["model.yaml"]) == found.model
        assert load_job(texts["job.yaml"]) == found.job
        assert load_configuration(texts["configuration.yaml"]) == found.configuration


@pytest.mark.parametrize("name", PLANS)
def test_kept_plans_are_read_back(name: str, tmp_path: Path) -> None:
    """With models of the catalog, all sorts of launchers, and offloading."""
    golden = PLANS[name]
    more: dict[str, Any] = {}
    if golden.target in ("deepspeed", "fsdp2"):
        more = {"model": golden.model, "seq_len": golden.job["seq_len"]}
    found = nest.read(written(tmp_path / "one", golden.files), **more)
    assert found.devices == golden.devices
    cluster = nest.load_cluster(golden.cluster, devices=golden.devices)
    priced = nest.evaluate(found.model, cluster, found.job, found.configuration)
    assert priced.step_time_s == golden.plan.step_time_s
    assert priced.configuration.offload == golden.plan.configuration.offload


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("layout", ["Ett|t||t||t|t|tL", "Et|t|t||t|t||L", "Et||||||t|tttttL"])
@pytest.mark.parametrize("stack", ["megatron-core", "megatron-bridge"])
def test_chunks_without_layers_are_read_back(
    stack: str, layout: str, zero: int, tmp_path: Path
) -> None:
    model = nest.Model.parse({
        "name": "m", "layers": layout.count("t"), "hidden": 512, "heads": 8, "ffn": 1024,
        "vocab": 1280, "gated": True, "norm": "rmsnorm", "bias": False, "tied_embeddings": True})
    cluster, job = nest.load_cluster("dgx-h100", devices=8), nest.Job(
        global_batch=16, seq_len=256, stack=stack)
    way = even_configuration(model, cluster, job, pp=4, tp=2, layout=layout, zero=zero,
                             recompute="full")
    plan = nest.evaluate(model, cluster, job, way)
    assert plan.runnable and str(plan.layout).count("||"), plan.not_runnable
    files = nest.export(plan, stack.removesuffix("-core"))
    given = {"model": model} if stack == "megatron-bridge" else {}
    found = nest.read(written(tmp_path / "one", files), **given)
    assert found.configuration == way
    assert nest.evaluate(
        found.model, cluster, found.job, found.configuration).step_time_s == plan.step_time_s


@pytest.mark.parametrize("degrees", [
    {"tp": 2, "pp": 2, "vpp": 2, "schedule": "interleaved", "zero": 1, "recompute": "full"},
    {"tp": 2, "zero": 3, "recompute": "full"}], ids=["pipeline", "plain"])
def test_torchtitan_that_counts_tokens(degrees: dict[str, Any], tmp_path: Path) -> None:
    """The settings that the exported module names for later sources say what its own say."""
    plan = PLANS["torchtitan"]._replace(degrees=degrees).plan
    files = nest.export(plan, "torchtitan")
    text, job = files["plan_config.py"], plan.inputs.job
    for name, setting in TOKENS.items():
        old = setting.partition(".")[2]
        lines = [line for line in text.splitlines() if line.strip().startswith(f"{old}=")]
        if not lines:  # without a pipeline it has no micro-batches of its own
            continue
        [value] = re.findall(rf"{name} (\d+)", text)
        text = text.replace(lines[0], f"        {name.split('.')[1]}={value},")
    assert f"num_tokens_per_train_step={job.global_batch * job.seq_len}," in text
    assert "local_batch_size=" not in text
    found = nest.read(written(tmp_path / "one", {**files, "plan_config.py": text}))
    priced = nest.evaluate(found.model, plan.inputs.cluster, found.job, found.configuration)
    assert priced.step_time_s == plan.step_time_s
    wrong = text.replace("max_context_length=8", "max_context_length=7")
    with pytest.raises(InputError, match="num_tokens_per_.*: got .*allowed: a multiple of 7192"):
        nest.read(written(tmp_path / "two", {**files, "plan_config.py": wrong}))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_places_are_those_of_any_launcher(launcher: str, tmp_path: Path) -> None:
    golden = PLANS["deepspeed-pipeline"]
    files = nest.export(golden.plan, "deepspeed", launcher=launcher)
    found = nest.read(written(tmp_path / "one", files), vocab=128256)
    way = golden.plan.configuration
    assert (found.configuration.outer_dp, found.configuration.stride) == (way.outer_dp, way.stride)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "deepspeed-pipeline"])
def test_files_without_their_script(name: str, tmp_path: Path) -> None:
    """The configuration file by itself: ranks in the order of the devices."""
    golden = PLANS[name]
    written(tmp_path / "one", golden.files)
    (tmp_path / "one" / "launch.sh").unlink()
    more: dict[str, Any] = {"devices": golden.devices}
    if golden.target in ("deepspeed", "fsdp2"):
        more |= {"model": golden.model, "seq_len": golden.job["seq_len"]}
    if golden.target == "deepspeed":  # an argument says it
        more |= {"variables": {"deepspeed-activation-checkpointing": "true"}}
    found = nest.read(tmp_path / "one" / FILES[golden.target], **more)
    assert found.job.global_batch == golden.job["global_batch"]
    ours, theirs = golden.plan.configuration.stages[0], found.configuration.stages[0]
    for field in ("tp", "sp", "cp", "ep", "zero", "recompute", "recompute_modules", "chunks"):
        assert getattr(theirs, field) == getattr(ours, field), field


def test_settings_of_the_user_come_first(tmp_path: Path) -> None:
    script = written(tmp_path / "one", PLANS["torchtitan-toml"].files)
    found = nest.read(script, variables={"training.seq_len": "4096"})
    assert found.job.seq_len == 4096
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace('"$@"', "--training.seq_len=2048 --metrics.log_freq 1"),
                      encoding="utf-8")
    found = nest.read(script)
    assert found.job.seq_len == 2048
    assert "no effect on the cost: metrics.log_freq" in found.notes


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "one", PLANS["torchtitan-toml"].files)
    folder = tmp_path / "job"
    out, _ = run(capsys, "read", str(tmp_path / "one" / "plan.toml"), "-o", str(folder))
    assert out.split() == [str(folder / f"{name}.yaml")
                           for name in ("model", "job", "configuration")]
    out, _ = run(capsys, "evaluate", str(folder / "model.yaml"), "dgx-h100", "--devices", "32",
                 "--job", str(folder / "job.yaml"), "--configuration",
                 str(folder / "configuration.yaml"))
    assert "tokens/s" in out
    _, err = run(capsys, "read", str(tmp_path / "one" / "plan.toml"), "-o", str(folder), "--force",
                 "--from", "megatron", code=2)
    assert "got a file for torchtitan-toml; allowed: a launch script" in err
    _, err = run(capsys, "read", str(tmp_path / "one" / "plan.toml"), "-o", str(folder), "--force",
                 "--devices", "16", code=2)
    assert "its degrees take 32 devices, and --devices says 16" in err


def test_a_misspelt_target_is_reported_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = written(tmp_path / "one", PLANS["torchtitan-toml"].files)
    for words in (("read", str(script), "-o", str(tmp_path / "job")),
                  ("improve", str(script), "dgx-h100")):
        _, err = run(capsys, *words, "--from", "torchtitn", code=2)
        assert err.startswith("nest: error: --from: got 'torchtitn'; did you mean torchtitan? "
                              "allowed: megatron")
    with pytest.raises(InputError, match="^target: got 'tt'; allowed: megatron"):
        nest.read(script, target="tt")


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml", "plan"])
def test_a_plan_file_is_named_as_such(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(PLANS["torchtitan-toml"].plan.to_json(), encoding="utf-8")
    for words in (("read", str(path), "-o", str(tmp_path / "job")),
                  ("improve", str(path), "dgx-h100", "--devices", "32")):
        _, err = run(capsys, *words, code=2)
        assert err == (f"nest: error: {path}: got a plan file, which `nest evaluate {path}` "
                       "prices; allowed: a launch script or a configuration file of training "
                       "software\n")
    path.write_text('{"schema": "nest.answer/1.0"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"got a document of NEST \(nest.answer/1.0\)"):
        nest.read(path)


@pytest.mark.parametrize(("name", "given", "nearest"), [
    ("torchtitan", "parallelism.tensor_paralel_degree", "parallelism.tensor_parallel_degree"),
    ("torchtitan", "tensor_parallel_degree", "parallelism.tensor_parallel_degree"),
    ("torchtitan", "modl_registry", "model_registry"),
    ("torchtitan-toml", "training.seqlen", "training.seq_len"),
    ("deepspeed-zero3", "zero_optimisation.stage", "zero_optimization.stage"),
    ("deepspeed-pipeline", "pipeline-model-parallel-sizes", "pipeline-model-parallel-size"),
    ("fsdp2", "nothing-alike", ""),
    ("megatron-bridge", "model.cuda_graph_impel", "model.cuda_graph_impl"),
    ("maxtext", "max_target_lenght", "max_target_length")])
def test_ignored_names_are_in_the_file(
    name: str, given: str, nearest: str, tmp_path: Path
) -> None:
    golden = PLANS[name]
    script = written(tmp_path / "one", golden.files)
    more: dict[str, Any] = {}
    if golden.target in ("deepspeed", "fsdp2"):
        more = {"model": golden.model, "seq_len": golden.job["seq_len"]}
    with pytest.raises(InputError) as caught:
        nest.read(script, ignore=[given], **more)
    near = f"did you mean {nearest}? " if nearest else ""
    assert str(caught.value) == (f"ignore: got {given!r}; {near}allowed: names of settings, "
                                 f"arguments or calls in {script}")


def test_ignored_names_that_are_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the file, of its command line, of a section, with a star, of what the user sets."""
    script = written(tmp_path / "one", PLANS["torchtitan-toml"].files)
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace('"$@"', "--metrics.log_freq 1"), encoding="utf-8")
    found = nest.read(script, ignore=[
        "compile.enable", "--metrics.log_freq", "compile", "training.global_batch*",
        "experimental.x"], variables={"experimental.x": "1"})
    assert ("ignored: training.global_batch_size, compile.enable, metrics.log_freq, "
            "experimental.x; the price leaves out what they do") in found.notes
    _, err = run(capsys, "improve", str(script), "dgx-h100", "--devices", "32", "--ignore",
                 "compile.enabel", code=2)
    assert "--ignore: got 'compile.enabel'; did you mean compile.enable? allowed" in err


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_lists_beside_a_file_that_are_not_read_are_named(launcher: str, tmp_path: Path) -> None:
    """Only where they order the ranks in another way than the devices."""
    golden = PLANS["deepspeed-pipeline"]
    given: dict[str, Any] = {"model": golden.model, "seq_len": 4096, "devices": 16,
                             "variables": {"deepspeed-activation-checkpointing": "true",
                                           "partition-method": "uniform"}}
    files = nest.export(golden.plan, "deepspeed", launcher=launcher)
    script = written(tmp_path / "one", files)
    listed = [name for name in ("ranks", "hosts", "hostfile", "slurm.hosts", "slurm.nodes")
              if name in files]
    found = nest.read(tmp_path / "one" / FILES["deepspeed"], **given)
    assert any(note.startswith(f"{listed[0]} beside the file is not read") for note in found.notes)
    assert not any("beside the file" in note for note in nest.read(script, vocab=128256).notes)
    plain = PLANS["deepspeed-zero3"]
    files = nest.export(plain.plan, "deepspeed", launcher=launcher)
    written(tmp_path / "two", files)
    found = nest.read(tmp_path / "two" / FILES["deepspeed"], **{**given, "devices": plain.devices})
    assert not any("beside the file" in note for note in found.notes)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    script = written(tmp_path / "one", PLANS["torchtitan-toml"].files)
    (tmp_path / "one" / "plan.toml").unlink()
    with pytest.raises(InputError, match=r"'plan.toml', which is not beside the script"):
        nest.read(script)


@pytest.mark.parametrize("name", ["fsdp2", "deepspeed-zero3"])
def test_scripts_with_a_program_that_is_named(name: str, tmp_path: Path) -> None:
    golden = PLANS[name]
    script = written(tmp_path / "one", golden.files)
    more: dict[str, Any] = {"model": golden.model, "seq_len": golden.job["seq_len"]}
    assert nest.read(script, variables={"PROGRAM": "pretrain_gpt.py"}, **more).configuration == (
        nest.read(script, **more).configuration)
