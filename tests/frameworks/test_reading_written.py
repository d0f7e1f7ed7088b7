"""Every file that `nest read` writes is read by NEST, and says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run
from exported_plans import PLANS  # noqa: E402

import nest
from nest.frameworks.megatron.script import plain_model
from nest.inputs import load_configuration, load_job
from nest.inputs.catalog import list_models
from nest.inputs.files import parse_yaml, yaml_text

SCRIPT = """\
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \\
  --micro-batch-size 1 --global-batch-size 32 --bf16 --vocab-size 50000 \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel \\
  --recompute-activations --use-distributed-optimizer --tokenizer-type NullTokenizer
"""


def test_the_documented_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages share what they recompute, which YAML would write once, with an alias."""
    script, folder = tmp_path / "run.sh", tmp_path / "job"
    script.write_text(SCRIPT, encoding="utf-8")
    run(capsys, "read", str(script), "-o", str(folder))
    out, _ = run(capsys, "evaluate", str(folder / "model.yaml"), "dgx-h100", "--devices", "16",
                 "--job", str(folder / "job.yaml"), "--configuration",
                 str(folder / "configuration.yaml"))
    assert "tokens/s" in out


@pytest.mark.parametrize("name", PLANS)
def test_files_of_all_targets(name: str, tmp_path: Path) -> None:
    golden = PLANS[name]
    for file, text in golden.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    given = ({"model": golden.model, "seq_len": golden.job["seq_len"]}
             if golden.target in ("deepspeed", "fsdp2") else {})
    found = nest.read(tmp_path / "launch.sh", **given)
    for file, text in found.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    assert nest.load_model(tmp_path / "model.yaml") == found.model
    assert load_job(tmp_path / "job.yaml") == found.job
    assert load_configuration(tmp_path / "configuration.yaml") == found.configuration


@pytest.mark.parametrize("name", list_models())
def test_models_of_the_catalog(name: str) -> None:
    model = nest.load_model(name)
    assert nest.load_model(parse_yaml(yaml_text(plain_model(model)))) == model
