"""Hostile configuration files: one clear message each, and nothing is executed or imported."""

from __future__ import annotations

import pickle
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exported_plans import PLANS, Golden  # noqa: E402
from test_reading_targets import FILES  # noqa: E402

import nest
from nest.errors import InputError

DEEP = 5000
TITAN = ("from torchtitan.models.llama3.config_registry import llama3_8b, model_registry\n"
         "def plan():\n    config = llama3_8b()\n    config.model_spec = model_registry('8B')\n"
         "    config.activation_checkpoint = None\n")


def refused(path: Path, text: str | bytes, **given: Any) -> str:
    """The one message of a file that is refused, soon."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    before = time.process_time()
    with pytest.raises(InputError) as caught:
        nest.read(path, **given)
    assert time.process_time() - before < 15.0  # a processor may be shared
    message = str(caught.value)
    assert len(message) < 3000 and path.name in message, message
    return message


@pytest.mark.parametrize("name", ["plan.toml", "ds_config.json", "plan.yml", "plan_config.py"])
@pytest.mark.parametrize("make", [
    lambda n: "a = " + "[" * n + "]" * n, lambda n: "[" * n, lambda n: '{"a":' * n + "1" + "}" * n,
    lambda n: "a: " + "[" * n + "]" * n, lambda n: "a." * n + "b = 1",
    lambda n: "x = " + "-" * n + "1", lambda n: "x = " + "f(" * n + ")" * n,
    lambda n: "x = a" + ".b" * n, lambda n: "x = " + "(" * n + ")" * n, lambda n: "def " * n])
def test_deep_nesting(name: str, make: Callable[[int], str], tmp_path: Path) -> None:
    refused(tmp_path / name, make(DEEP))


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("plan.toml", "[training]\nseq_len = nan", "training.seq_len: got nan"),
    ("plan.toml", "[training]\nseq_len = " + "9" * 5000,
     "line 2: seq_len: got a whole number of 5000 digits"),
    ("plan.toml", "[training]\nlocal_batch_size = " + "9" * 400, "got a whole number of"),
    ("plan.toml", "[parallelism]\ndata_parallel_shard_degree = 99999999999\n"
     "[activation_checkpoint]\nmode = 'none'", "got 99999999999"),
    ("plan.toml", "[parallelism]\nmodule_fqns_per_model_part = 3\npipeline_parallel_degree = 2\n"
     "data_parallel_shard_degree = 1\n[model]\nflavor = '8B'\n[activation_checkpoint]\n"
     "mode = 'none'", "module_fqns_per_model_part: got 3"),
    ("ds_config.json", '{"train_batch_size": NaN}', "got NaN; allowed: a finite"),
    ("ds_config.json", '{"train_batch_size": "auto"}',
     "train_batch_size and train_micro_batch_size_per_gpu: missing"),
    ("ds_config.json", '{"train_batch_size": 1, "train_batch_size": 2}', "train_batch_size"),
    ("ds_config.json", "[1]", "got [1]; allowed: a mapping"),
    ("ds_config.json", '{"zero_optimization": {"stage3_max_reuse_distance": 1e400}}', "max_reuse"),
    ("ds_config.json", '{"zero_optimization": {"zero_hpz_partition_size": 8}}',
     "zero_hpz_partition_size: got 8; allowed: 1"),
    ("plan.yml", "a: &a [1]\nb: *a", "got an alias"),
    ("plan.yml", "a: &a [x, x]\n" + "\n".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]" for n in range(20)),
     "alias"),
    ("plan.yml", "!!python/object/apply:os.system ['touch MARK']", "tag"),
    ("plan.yml", "steps: !!python/name:os.system", "tag"),
    ("plan.yml", "hardware: gpu\nper_device_batch_size: .nan", "size: got nan"),
    ("plan.yml", "hardware: gpu\nmax_target_length: -4", "max_target_length: got -4"),
    ("plan.yml", "- 1", "allowed: a mapping"),
    ("parallelize.py", "DP_REPLICATE = 1\nDP_SHARD = __import__('os').system('touch MARK')",
     "is \"__import__('os').system('touch MARK')\", which is not understood"),
    ("plan_config.py", TITAN + "    __import__('os').system('touch MARK')\n    return config",
     "llama3_8b decides it"),
    ("plan_config.py", TITAN + "    config.training.seq_len = __import__('os').system('touch "
     "MARK')\n    return config", "not understood"),
    ("plan_config.py", TITAN + "    config.training.seq_len = eval('1')\n    exec('x')\n"
     "    return config", "not understood"),
    ("plan_config.py", TITAN + "    for n in range(9): config.training.seq_len = n\n"
     "    return config", "is not understood"),
    ("plan_config.py", "def plan():\n    return plan()", "more than 40 values"),
    ("plan_config.py", "def a(): return [b(), b()]\ndef b(): return [c(), c()]\n"
     + "".join(f"def {x}(): return [{y}(), {y}()]\n"
               for x, y in zip("cdefghijklmnopqrst", "defghijklmnopqrstu", strict=True)),
     "functions"),
    ("plan_config.py", "def plan(:", "line 1: no Python"),
    ("plan_config.py", "x = " + "9" * 5000, "no Python"),
    ("plan_config.py", "class A: pass", "got no function"),
    ("plan_config.py", "@__import__('os').system('touch MARK')\ndef plan(): return 1",
     "the function returns no configuration"),
    ("plan_recipe.py", "# megatron.bridge\ndef plan():\n    config = f()\n    config.model.x = "
     "open('MARK', 'w')\n    return config", "model.x: it may change the cost"),
])
def test_hostile_values(name: str, text: str, wanted: str, tmp_path: Path) -> None:
    mark = tmp_path / "owned"
    more: dict[str, Any] = {"model": "llama3-8b", "devices": 8}
    message = refused(tmp_path / name, text.replace("MARK", str(mark)), **more)
    assert wanted.replace("MARK", str(mark)) in message or wanted[:20] in message, message
    assert not mark.exists()


def test_functions_that_call_each_other_twice_end(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(40)]
    text = "".join(f"def {a}(): return [{b}(), {b}()]\n"
                   for a, b in zip(names, names[1:], strict=False))
    message = refused(tmp_path / "plan_config.py", text + "def f39(): return 1\n", function="f0")
    assert "inside one another, or 100000 in all" in message


@pytest.mark.parametrize("name", [*FILES.values(), "run.sh"])
def test_pickles_are_not_read(name: str, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "owned",))

    refused(tmp_path / name, pickle.dumps(Evil()))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("evil", ["$(touch {0})", "`touch {0}`", "; touch {0}", "<(touch {0})"])
def test_scripts_are_not_executed(evil: str, tmp_path: Path) -> None:
    files = PLANS["torchtitan-toml"].files
    (tmp_path / "plan.toml").write_text(files["plan.toml"], encoding="utf-8")
    mark = tmp_path / "owned"
    script = tmp_path / "launch.sh"
    text = files["launch.sh"].replace('"$@"', f"--training.seq_len {evil.format(mark)}")
    script.write_text(text, encoding="utf-8")
    if evil.startswith(";"):  # another command
        (tmp_path / "plan.toml").write_text("training = 3", encoding="utf-8")
    with pytest.raises(InputError):
        nest.read(script)
    assert not mark.exists()


VALUES = ("-1", "0", "3", "9" * 40, "1e400", "nan", ".nan", "Infinity", "true", "null", "None",
          "[]", "[[]]", "{}", '"x"', '""', "1.5", '"' + "a" * 5000 + '"', "*a", "&a [1]",
          "$(touch MARK)", "__import__('os').system('touch MARK')", "lambda: 1", "('a',)",
          "[1, 2, [3]]", "torch.float32", "['layers.99999']", "\u202e")
_VALUE = re.compile(r"(?<=[=: ])\s*([\w.'\"\[\]-]+)(,?)\s*$")


@pytest.mark.parametrize("name", PLANS)
def test_spoilt_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Lines with other values, twice, elsewhere, left out: never another error than InputError."""
    golden, rng = PLANS[name], random.Random(name)
    mark = tmp_path / "owned"
    more: dict[str, Any] = {}
    if golden.target in ("deepspeed", "fsdp2"):
        more = {"model": golden.model, "seq_len": golden.job["seq_len"]}
    files, refusals = golden.files, 0
    for number in range(30):
        spoilt = _spoilt(golden, files, rng, str(mark))
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, text in {**files, **spoilt}.items():
            (folder / file).write_text(text, encoding="utf-8")
        try:
            nest.read(folder / rng.choice(("launch.sh", FILES[golden.target])), **more)
        except InputError as error:
            refusals += 1
            assert len(str(error)) < 3000
    assert refusals and not mark.exists()


def _spoilt(
    golden: Golden, files: dict[str, str], rng: random.Random, mark: str
) -> dict[str, str]:
    name = rng.choice((FILES[golden.target], FILES[golden.target], *files))
    lines = files[name].split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.choice(("value", "value", "less", "twice", "mark"))
    if how == "value":
        lines[at] = _VALUE.sub(lambda found: rng.choice(VALUES).replace("MARK", mark) + found[2],
                               lines[at])
    elif how == "less":
        del lines[at]
    elif how == "twice":
        lines.insert(other, lines[at])
    else:
        lines[at] += rng.choice("'\"()[]{}:,=\\#$\x01")
    return {name: "\n".join(lines)}


@pytest.mark.parametrize("text", ["36#" + "z" * 10**5, "a " * 10**5, "a[" * 10**5, "--" * 10**5])
def test_long_arithmetic_of_a_script_is_refused_soon(text: str, tmp_path: Path) -> None:
    script = f"X=$(({text}))\npython pretrain_gpt.py --num-layers $X\n"
    message = refused(tmp_path / "job.sh", script)
    assert "line 1" in message and len(message) < 400


@pytest.mark.parametrize("word", ["${{{0}}}", "${{X:{0}}}", "${{X: -{0}}}", "${{X:1:{0}}}"])
def test_more_digits_than_a_number_has(word: str, tmp_path: Path) -> None:
    shown = word.format("9" * 5000)
    message = refused(tmp_path / "job.sh", f"X=123\npython pretrain_gpt.py --num-layers {shown}\n")
    assert f"--num-layers depends on '{shown[:20]}" in message and len(message) < 400


def test_a_word_of_many_unknown_parts_is_refused_soon(tmp_path: Path) -> None:
    script = "echo " + "$x" * 50000 + "\npython pretrain_gpt.py --num-layers 2\n"
    message = refused(tmp_path / "job.sh", script)
    assert "line 1: more than 20000 values that are not known" in message


def test_a_script_has_no_file_read_from_just_anywhere(tmp_path: Path) -> None:
    """Only from its folder and three above it, as documented, also by way of `..`."""
    (tmp_path / "far.json").write_text("{not json")
    folder = tmp_path / "a" / "b" / "c" / "d"
    folder.mkdir(parents=True)
    start = "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed_config "
    assert "not beside the script" in refused(folder / "job.sh", start + "../../../../far.json\n")
    (tmp_path / "a" / "near.json").write_text("{not json")
    assert "near.json: line 1" in refused_by(folder / "job.sh", start + "../../../near.json\n")


def refused_by(path: Path, text: str) -> str:
    """The message of a script that is refused for another file."""
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        nest.read(path)
    return str(caught.value)


LONG = ("9" * 5000, "x" * 5000, "-" + "9" * 5000, "9." + "9" * 5000)
COMMAND = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 64 "


@pytest.mark.parametrize("name", ["num-layers", "num-attention-heads", "optimizer", "normalization",
                                  "tensor-model-parallel-size", "window-size", "no-such-argument"])
def test_a_long_value_of_an_argument_is_cut(tmp_path: Path, name: str) -> None:
    for value in LONG:
        (tmp_path / "run.sh").write_text(f"{COMMAND} --{name} {value}\n", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            nest.read(tmp_path / "run.sh")
        assert not re.search(r"9{100}|x{100}", str(caught.value))


def test_a_sourced_file_whose_name_is_too_long_is_not_there(tmp_path: Path) -> None:
    text = f"source {'f' * 5000}\ntorchrun {'p' * 5000} --config {'q' * 5000}.yaml\n{COMMAND}\n"
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="num-attention-heads"):  # of the last line
        nest.read(tmp_path / "run.sh")


def test_a_file_of_many_keys_is_of_no_known_software_at_once(tmp_path: Path) -> None:
    keys = ", ".join(f'"k{n}": 1' for n in range(100_000))
    assert "of no software" in refused(tmp_path / "many.json", f"{{{keys}}}")


@pytest.mark.parametrize(("name", "target", "first", "count"), [
    ("ds_config.json", "deepspeed", '"train_batch_size": 8', 40_000),
    ("plan.yml", "maxtext", '"per_device_batch_size": 2', 20_000)])
def test_unknown_settings_are_counted_soon(
    tmp_path: Path, name: str, target: str, first: str, count: int
) -> None:
    keys = ",\n".join(f'"key_number_{n}": 1' for n in range(count))
    text = refused(tmp_path / name, f"{{{first},\n{keys}}}", target=target, model="gpt2-xl",
                   devices=8, seq_len=1024)
    assert "key_number_0: it may change the cost" in text
    assert text.endswith(f"{name}: and {count - 8} more")


def test_unknown_arguments_are_counted(tmp_path: Path) -> None:
    words = " ".join(f"--key-number-{n} 1" for n in range(5000))
    text = refused_by(tmp_path / "run.sh", f"{COMMAND} --num-attention-heads 8 {words}\n")
    assert "--key-number-0: no argument" in text
    assert "and 4992 more" in text
