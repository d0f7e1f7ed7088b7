"""`nest read` of Megatron-LM's command lines: round trips of random plans, defaults, refusals."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.errors import InputError, UnsupportedError
from nest.frameworks.megatron.write import SECTIONS
from nest.frameworks.settings import figures_of, known, settings
from nest.inputs import load_stack

sys.path.insert(0, str(Path(__file__).parents[1] / "stacks"))
from framework_plans import runnable  # noqa: E402

COUNT = int(os.environ.get("NEST_READ_PLANS", "24"))
"""Random plans of a round trip."""
BASE = ("torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 8 --hidden-size 64 "
        "--num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 "
        "--micro-batch-size 1 --global-batch-size 32 --bf16")


def reading(folder: Path, more: str = "", base: str = BASE, **given: Any) -> nest.Reading:
    path = folder / "run.sh"
    path.write_text(f"{base} {more}\n", encoding="utf-8")
    return nest.read(path, **given)


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize(("stack", "count"), [
    ("megatron-core", COUNT - COUNT // 4), ("megatron-fsdp", COUNT // 4)])
def test_exported_plans_are_read_back(stack: str, count: int, tmp_path: Path) -> None:
    """The step time of what is read is that of the plan, to the last digit."""
    seen = set()
    for number, case in enumerate(runnable(stack, count)):
        assert case.plan is not None
        folder = tmp_path / str(number)
        folder.mkdir()
        launcher = ("torchrun", "mpi", "slurm")[number % 3]
        for name, text in nest.export(case.plan, "megatron", launcher=launcher).items():
            (folder / name).write_text(text, encoding="utf-8")
            seen.add(name)
        found = nest.read(folder / "launch.sh")
        assert found.devices == case.world
        priced = nest.evaluate(found.model, case.cluster, found.job, found.configuration)
        assert priced.step_time_s == case.plan.step_time_s, case.plan.inputs
    assert seen & {"hosts", "ranks"} or stack == "megatron-fsdp"


def test_degrees_of_experts_divide_them(tmp_path: Path) -> None:
    """In the words of `nest evaluate`."""
    base = BASE.replace("--nproc_per_node 8 --nnodes 2", "--nproc_per_node 3 --nnodes 2")
    more = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size {}".format
    with pytest.raises(InputError, match=r"run\.sh: ep 3 does not divide experts 8$"):
        reading(tmp_path, more(3), base.replace("size 32", "size 48"))
    assert reading(tmp_path, more(2)).configuration.stages[0].ep == 2


def there_and_back(case: Any, job: nest.Job, base: str, folder: Path) -> nest.Job | None:
    """The job that is read from what a plan of the stack ``base`` is exported as; its step time is
    that of the plan. None: it cannot be exported."""
    plan = nest.evaluate(case.model, case.cluster, job, case.way)
    target = base.removesuffix("-core")
    with suppress(UnsupportedError):
        for name, text in nest.export(plan, target).items():
            (folder / name).write_text(text, encoding="utf-8")
        found = nest.read(folder / "launch.sh",
                          model=None if target == "megatron" else case.model)
        priced = nest.evaluate(found.model, case.cluster, found.job, found.configuration)
        assert priced.step_time_s == plan.step_time_s
        return found.job
    return None


@pytest.mark.parametrize("graphs", ["layers", "step"])
@pytest.mark.parametrize("base", ["megatron-core", "megatron-bridge"])
def test_cuda_graphs_are_read_back(base: str, graphs: str, tmp_path: Path) -> None:
    stack, seen = load_stack({"base": base, "cuda_graphs": graphs}), 0
    for case in runnable("megatron-core", 8):
        if found := there_and_back(case, case.job.replace(stack=stack), base, tmp_path):
            assert found.stack.cuda_graphs == graphs
            seen += 1
    assert seen > 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("base", ["megatron-core", "megatron-bridge"])
def test_experts_of_a_capacity_are_read_back(base: str, padded: bool, tmp_path: Path) -> None:
    seen = 0
    for case in runnable("megatron-core", 8):
        job = case.job.replace(stack=base, expert_capacity=1.25, expert_padding=padded)
        if found := there_and_back(case, job, base, tmp_path):
            assert found.capacity == ("none" if case.model.moe is None else job.capacity)
            seen += case.model.moe is not None
    assert seen


@pytest.mark.parametrize(("more", "wanted"), [
    ("", (None, False)), ("--moe-expert-capacity-factor 1.5", (1.5, False)),
    ("--moe-expert-capacity-factor=-1.0", (None, False)),
    ("--moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity "
     "--moe-token-drop-policy position", (1.0, True))])
def test_capacities(tmp_path: Path, more: str, wanted: tuple[float | None, bool]) -> None:
    found = reading(tmp_path, f"--num-experts 8 {more}").job
    assert (found.expert_capacity, found.expert_padding) == wanted
    dense = reading(tmp_path, more).job
    assert (dense.expert_capacity, dense.expert_padding) == (None, False)


@pytest.mark.parametrize(("more", "wanted"), [
    ("--moe-pad-expert-input-to-capacity", "expert_padding: got true without expert_capacity"),
    ("--moe-expert-capacity-factor many", "expert_capacity: got 'many'"),
    ("--moe-expert-capacity-factor 0", "expert_capacity: got 0")])
def test_capacities_that_are_none(tmp_path: Path, more: str, wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        reading(tmp_path, f"--num-experts 8 {more}")
    assert wanted in str(caught.value)


@pytest.mark.parametrize("section", SECTIONS)
def test_each_setting_is_read_as_it_is_written(section: str) -> None:
    """Figures that a table writes are those that it reads; all names are Megatron's."""
    table = SECTIONS[section]
    assert {one.name for one in table} <= {*known().takes}
    for one in table:
        values = one.words or ((3, 5) if one.unless == (None,) else (3,))
        for value in values:
            given = {each.figure: each.unless[0] for each in table} | {one.figure: value}
            written = settings((one,), given)
            if written:
                assert figures_of((one,), written) == {one.figure: value}


# ---------------------------------------------------------------- devices


REST = BASE[BASE.index("pretrain_gpt.py"):]


@pytest.mark.parametrize(("launcher", "devices"), [
    ("mpirun -np 128 --npernode 8 -x MASTER_ADDR=a python", 128),
    ("mpiexec -n 32 -ppn 8 python3 -u", 32), ("mpirun -np 16 --map-by ppr:8:node python", 16),
    ("srun -n 16 python", 16), ("srun --nodes=2 --ntasks-per-node=8 python", 16),
    ("torchrun --nproc_per_node 8 --nnodes 2", 16), ("WORLD_SIZE=16 python", 16),
    ("python -m torch.distributed.run --nproc-per-node=8", 8),
])
def test_devices_of_launchers(tmp_path: Path, launcher: str, devices: int) -> None:
    assert reading(tmp_path, base=f"{launcher} {REST}").devices == devices


@pytest.mark.parametrize("launcher", [
    "python", "python3 -u", "mpirun python", "srun python",
    "torchrun --nproc_per_node 8 --nnodes $NODES", "mpirun -np $(wc -l < hosts) python",
    "mpirun -np $((16*8)) python",
    "torchrun --nproc_per_node gpu"])
def test_devices_that_the_script_does_not_say_are_asked_for(
    tmp_path: Path, launcher: str
) -> None:
    """A bare python may be started by anything; it was read as one device."""
    with pytest.raises(InputError, match="--devices N"):
        reading(tmp_path, base=f"{launcher} {REST}")
    assert reading(tmp_path, base=f"{launcher} {REST}", devices=16).devices == 16


def test_a_script_that_mpi_starts_is_read_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(f"python {REST}\n", encoding="utf-8")
    for line in ("mpirun -np 32 --npernode 8 -bind-to none -x A=1 bash train.sh",
                 "#SBATCH --ntasks-per-node=8\nsrun bash train.sh"):
        with pytest.raises(InputError, match="line [12]: it starts another script, 'train.sh'"):
            reading(tmp_path, base=line)
    with pytest.raises(InputError, match="train.sh: the number of devices is not in the script"):
        nest.read(tmp_path / "train.sh")


def test_lines_of_slurm_end_at_the_first_command(tmp_path: Path) -> None:
    """sbatch reads no others: https://slurm.schedmd.com/sbatch.html, Description."""
    lines = "#SBATCH --nodes=4 --ntasks-per-node=8\n\n# more\nexport A=1\n#SBATCH --nodes=64\n"
    assert reading(tmp_path, base=f"{lines}srun python {REST}").devices == 32


def test_spec_as_the_first_argument(tmp_path: Path) -> None:
    base = "torchrun --nproc_per_node 8 pretrain_gpt.py --spec a.b layer --num-layers $LAYERS"
    with pytest.raises(InputError, match="--num-layers depends on .*--set LAYERS=VALUE"):
        reading(tmp_path, base=base)
    with pytest.raises(InputError, match="--spec: it may change the cost"):
        reading(tmp_path, base=f"{base} {REST.partition(' ')[2]}", variables={"LAYERS": "8"})


def test_commands_of_other_software_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1: got a command of ms-swift .*nest evaluate"):
        reading(tmp_path, base="NNODES=2 megatron sft --tensor_model_parallel_size 2")


# ---------------------------------------------------------------- defaults and aliases


@pytest.mark.parametrize(("more", "field", "value"), [
    ("", "ffn", 256),
    ("--swiglu", "ffn", 128),  # int(4 x 64 x 2 / 3 / 64) x 64
    ("", "vocab", 50257),
    ("--vocab-size 99 --tokenizer-type NullTokenizer", "vocab", 100),
    ("", "positions", 64),
    ("--use-rotary-position-embeddings", "positions", 0),
    ("", "bias", True),
    ("", "tied_embeddings", True),
    ("--num-query-groups 2", "kv_heads", 8),
    ("--group-query-attention --num-query-groups 2", "kv_heads", 2),
    ("--kv-channels 16", "head_dim", 16),
    ("--window-size 31,0 --window-attn-skip-freq 4", "full_layers", (3, 7)),
    ("--softmax-type learnable", "sinks", True),
    ("--quick-geglu", "gated", True),
])
def test_models(tmp_path: Path, more: str, field: str, value: object) -> None:
    assert getattr(reading(tmp_path, more).model, field) == value


@pytest.mark.parametrize(("freq", "experts"), [
    ("1", range(8)), ("2", (0, 2, 4, 6)), ("'([0]*3+[1]*5)'", range(3, 8)),
    ("[0,1]*4", (1, 3, 5, 7)), ("[0,1,1,0]*2", (1, 2, 5, 6)), ("[0]*7+[1]", (7,)),
])
def test_layers_with_experts(tmp_path: Path, freq: str, experts: Any) -> None:
    model = reading(tmp_path, f"--num-experts 4 --moe-layer-freq {freq}").model
    assert [n for n in range(8) if model.is_moe_layer(n)] == [*experts]
    assert model.moe and (model.moe.top_k, model.moe.ffn) == (2, 256)


@pytest.mark.parametrize(("more", "wanted"), [
    ("", {"pp": 1, "outer_dp": 16, "zero": 0, "sp": False}),
    ("--tensor-model-parallel-size 4 --sequence-parallel", {"tp": 4, "sp": True, "outer_dp": 4}),
    ("--sequence-parallel", {"sp": False}),
    ("--pipeline-model-parallel-size 4", {"pp": 4, "outer_dp": 1, "dp_in": 4}),
    ("--pipeline-model-parallel-size 4 --use-tp-pp-dp-mapping", {"outer_dp": 4, "dp_in": 1}),
    ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
     {"vpp": 2, "schedule": "interleaved"}),
    ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", {"vpp": 2}),
    ("--pipeline-model-parallel-size 2 --num-layers 6 --account-for-embedding-in-pipeline-split "
     "--account-for-loss-in-pipeline-split", {"layers": (0, 4)}),
    ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3", {"layers": (0, 4)}),
    ("--use-distributed-optimizer", {"zero": 1, "shard": "dp"}),
    ("--use-distributed-optimizer --num-distributed-optimizer-instances 2",
     {"outer_dp": 2, "dp_in": 8, "shard": "dp_in"}),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"zero": 3}),
    ("--recompute-activations", {"recompute": "selective", "recompute_modules": ("core_attn",)}),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 2",
     {"recompute": "full", "recompute_layers": 2}),
    ("--num-experts 8 --expert-model-parallel-size 8", {"ep": 8, "etp": 1, "dp_in": 8}),
])
def test_configurations(tmp_path: Path, more: str, wanted: dict[str, Any]) -> None:
    way = reading(tmp_path, more).configuration
    for name, value in wanted.items():
        assert getattr(way if hasattr(way, name) else way.stages[0], name) == value, name


@pytest.mark.parametrize(("more", "changes"), [
    ("--use-distributed-optimizer --use-precision-aware-optimizer --overlap-grad-reduce "
     "--overlap-param-gather", {}),
    ("", {"overlap_grad_reduce": 0.0}),
    ("--overlap-grad-reduce --grad-reduce-in-bf16", {"gradient_dtype": "bf16"}),
    ("--overlap-grad-reduce --attention-backend unfused", {"flash_attention": False}),
    ("--overlap-grad-reduce --num-experts 8 --moe-enable-deepep", {"dispatcher": "deepep"}),
    ("--overlap-grad-reduce --cuda-graph-impl local --cuda-graph-scope full_iteration",
     {"cuda_graphs": "step"}),
])
def test_stacks(tmp_path: Path, more: str, changes: dict[str, Any]) -> None:
    base, found = nest.Stack.parse(nest.Job(global_batch=1, seq_len=1).stack), reading(
        tmp_path, more).job.stack
    assert {name: getattr(found, name) for name in nest.Stack.model_fields
            if name != "name" and getattr(found, name) != getattr(base, name)} == changes


@pytest.mark.parametrize(("more", "zero"), [
    ("--optimizer muon --muon-tp-mode blockwise --muon-momentum 0.95", 0),
    ("--optimizer dist_muon --muon-num-ns-steps 5", 1)])
def test_muon(tmp_path: Path, more: str, zero: int) -> None:
    """Of one device, or divided over the ranks; it hides nothing."""
    found = reading(tmp_path, more)
    assert (found.job.optimizer, found.configuration.stages[0].zero) == ("muon", zero)
    stack = found.job.stack
    assert (stack.overlap_grad_reduce, stack.overlap_param_gather * zero) == (0.0, 0.0)


@pytest.mark.parametrize(("more", "precision"), [
    ("--fp8-format hybrid", "fp8-delayed"), ("", "bf16"),
    ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8"),
    ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
    ("--fp8-format hybrid --fp8-recipe blockwise", "fp8-blockwise"),
    ("--fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4")])
def test_number_formats(tmp_path: Path, more: str, precision: str) -> None:
    assert reading(tmp_path, more).job.precision == precision
    half = reading(tmp_path, base=BASE.replace("--bf16", "--fp16")).job
    assert (half.precision, half.stack.gradient_dtype) == ("fp16", "bf16")


def test_layers_of_its_own(tmp_path: Path) -> None:
    """Without Transformer Engine attention is not fused: megatron/core/models/backends.py."""
    local = reading(tmp_path, "--transformer-impl local").job.stack
    assert not local.flash_attention
    assert not reading(tmp_path, "--transformer-impl local --attention-backend flash"
                       ).job.stack.flash_attention
    engine = reading(tmp_path, "--transformer-impl transformer_engine").job.stack
    assert engine.flash_attention
    with pytest.raises(InputError, match="--transformer-impl: got 'inference_optimized'; allowed:"):
        reading(tmp_path, "--transformer-impl inference_optimized")


@pytest.mark.parametrize(("argument", "allowed"), [
    ("--distributed-backend gloo", "nccl"),
    ("--rerun-mode report_stats", "disabled, validate_results"),
    ("--moe-router-load-balancing-type aux_loss sinkhorn", "aux_loss, seq_aux_loss")])
def test_values_that_take_unknown_time(argument: str, allowed: str, tmp_path: Path) -> None:
    """Steps that run twice: megatron/core/rerun_state_machine.py:342; a loop until it converges:
    megatron/core/transformer/moe/moe_utils.py:185."""
    with pytest.raises(InputError, match=f"{argument.split()[0]}: got .*; allowed: {allowed}"):
        reading(tmp_path, argument)
    usual = "--distributed-backend nccl --rerun-mode disabled --moe-router-load-balancing-type "
    for losses in ("seq_aux_loss", "aux_loss global_aux_loss"):
        assert reading(tmp_path, usual + losses).job == reading(tmp_path, "").job


@pytest.mark.parametrize("argument", ["--skip-train", "--batch-invariant-mode"])
def test_other_work_than_training_is_refused(argument: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{argument}: it may change the cost"):
        reading(tmp_path, argument)


@pytest.mark.parametrize(("argument", "effect"), [
    ("--deterministic-mode", "how much longer they take the code does not tell"),
    ("--defer-embedding-wgrad-compute", "the last stage holds their inputs"),
    ("--log-num-zeros-in-grad", "are read once more"),
    ("--timing-log-level 2", "less overlaps"),
    ("--cross-entropy-loss-fusion", "a copy of 4 bytes each"),
    ("--no-overlap-p2p-communication", "up to their time"),
    ("--tp-comm-overlap-cfg x", "a part of that traffic")])
def test_arguments_without_a_price_say_how_much(
    argument: str, effect: str, tmp_path: Path
) -> None:
    start = f"no price for {argument.split()[0]}"
    [note] = [note for note in reading(tmp_path, argument).notes if note.startswith(start)]
    assert effect in note


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("more", "wanted"), [
    ("--spec a b", "--spec: it may change the cost, and NEST does not read it"),
    ("--num-layer 3", "--num-layer: no argument of Megatron-LM core_v0.16.1; did you mean "
     "num-layers?"),
    ("--optimizer lion", "--optimizer: got 'lion'; allowed: adam, sgd"),
    ("--tensor-model-parallel-size 3", "16 devices are no multiple"),
    ("--tensor-model-parallel-size " + "9" * 400, "--tensor-model-parallel-size: got"),
    ("--hidden-size nan", "--hidden-size: got 'nan'"),
    ("--hidden-size 1e400", "--hidden-size: got"),
    ("--moe-layer-freq \"__import__('os')\" --num-experts 2", "--moe-layer-freq: got"),
    ("--moe-layer-freq [1]*99999999 --num-experts 2", "--moe-layer-freq: got"),
    ("--moe-layer-freq [1]*7 --num-experts 2", "got 7 entries; allowed: 8"),
    ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model a/b", "give them by --vocab N"),
    # A class of tokenizers has no number of tokens: a model of 100,000 was read with 32,000.
    ("--tokenizer-type Llama2Tokenizer --tokenizer-model /t.model", "give them by --vocab N"),
    ("--tokenizer-type GPT2BPETokenizer --vocab-file /data/our-vocab.json",
     "give them by --vocab N"),
    ("--use-checkpoint-args", "--use-checkpoint-args: arguments of the checkpoint replace"),
    ("--t5-swiglu", "--t5-swiglu: no argument of Megatron-LM core_v0.16.1"),
    ("--exp-avg-dtype bf16", "--exp-avg-dtype: got 'bf16'; allowed: fp32"),
    ("--cp-comm-type bogus", "--cp-comm-type: got 'bogus'"),
    ("--window-size 3,9", "--window-size: got"),
    ("--num-layers", "--num-layers: got"),
    ("--hidden-dropout", "--hidden-dropout: got"),
    ("--optimizer muon --muon-tp-mode distributed", "--muon-tp-mode: got"),
    ("--fp8-format hybrid --fp8-recipe custom", "--fp8-recipe: got"),
    ("--fp4-format e2m1 --fp4-recipe custom", "--fp4-recipe: got"),
    ("--recompute-granularity selective --recompute-modules nothing", "--recompute-modules: got"),
    ("--recompute-granularity selective --recompute-modules mlp_act",  # NEST's name
     "--recompute-modules: got 'mlp_act'; allowed: core_attn, layernorm, moe_act, moe"),
    ("--pipeline-model-parallel-size 16 --tensor-model-parallel-size 1",
     "--num-layers: got 8; allowed without a layout: a multiple of pp 16 x virtual stages 1"),
    ("--num-distributed-optimizer-instances 3", "a divisor of the data parallel size 16"),
])
def test_refusals(tmp_path: Path, more: str, wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        reading(tmp_path, more)
    assert wanted in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("more", ["--spec a b", "--use-checkpoint-args", "--t5-swiglu"])
def test_nothing_is_advised_to_be_left_out(tmp_path: Path, more: str) -> None:
    with pytest.raises(InputError) as caught:
        reading(tmp_path, more)
    assert "ignore" not in str(caught.value)


@pytest.mark.parametrize(("more", "noted"), [
    ("--vocab-file $DATA/gpt2-vocab.json --tokenizer-type GPT2BPETokenizer", False),
    ("--vocab-file $VOCABULARY --tokenizer-type GPT2BPETokenizer", True), ("", True)])
def test_an_assumed_vocabulary_is_said(tmp_path: Path, more: str, noted: bool) -> None:
    found = reading(tmp_path, more)
    assert found.model.vocab == 50257
    assert any("50257 tokens, is assumed" in note for note in found.notes) == noted


def test_arguments_can_be_ignored(tmp_path: Path) -> None:
    found = reading(tmp_path, "--spec a b --no-masked-softmax-fusion", ignore=["spec"])
    assert "ignored: --spec; the price leaves out what they do" in found.notes
    [note] = [one for one in found.notes if one.startswith("no price for --no-masked-softmax-fus")]
    assert "without a fused kernel several kernels take its place" in note
    assert note.endswith("how much the code does not tell)")
    with pytest.raises(InputError, match=(
            r"^ignore: got 'spce'; did you mean spec\? allowed: names of settings, arguments")):
        reading(tmp_path, "--spec a b", ignore=["spec", "spce"])


# ---------------------------------------------------------------- the command


def test_files_are_taken_by_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(BASE + " --tensor-model-parallel-size 8\n", encoding="utf-8")
    folder = tmp_path / "job"
    out, err = run(capsys, "read", str(script), "-o", str(folder))
    assert out.split() == [str(folder / f"{name}.yaml")
                           for name in ("model", "job", "configuration")]
    assert "nest: note: no price for dropout" in err
    out, _ = run(capsys, "evaluate", str(folder / "model.yaml"), "dgx-h100", "--devices", "16",
                 "--job", str(folder / "job.yaml"), "--configuration",
                 str(folder / "configuration.yaml"))
    assert "tokens/s" in out


def test_devices_and_vocabulary_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, folder = tmp_path / "run.sh", tmp_path / "job"
    script.write_text(BASE, encoding="utf-8")
    run(capsys, "read", str(script), "-o", str(folder), "--devices", "32", "--vocab", "999")
    assert "vocab: 999" in (folder / "model.yaml").read_text(encoding="utf-8")
    assert "32 devices" in (folder / "job.yaml").read_text(encoding="utf-8")
    for name in ("devices", "vocab"):
        _, err = run(capsys, "read", str(script), "-o", str(folder), f"--{name}", "0", code=2)
        assert f"{name}: got 0; allowed: 1 to" in err


def test_nothing_is_written_of_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.sh").write_text(BASE + " --spec a b\n", encoding="utf-8")
    _, err = run(capsys, "read", str(tmp_path / "run.sh"), "-o", str(tmp_path / "job"), code=2)
    assert "--spec" in err and not (tmp_path / "job").exists()
    _, err = run(capsys, "read", str(tmp_path / "run.sh"), "-o", str(tmp_path / "job"), "--set",
                 "a b=1", code=2)
    assert "--set: got 'a b=1'; allowed: NAME=VALUE" in err


@pytest.mark.kernels
def test_places_in_groups_that_are_partly_used(tmp_path: Path) -> None:
    """Six devices of each node of eight: the list of ranks has their own numbers."""
    cluster = nest.load_cluster("dgx-h100", devices=12)
    assert cluster.numbers is not None
    model = reading(tmp_path).model
    plan = nest.plan(model, cluster, nest.Job(global_batch=24, seq_len=64),
                     nest.SearchSpace(pp=2, outer_dp=2, dp_in=3, tp=1))
    for name, text in nest.export(plan, "megatron").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert (tmp_path / "ranks").exists()
    found = nest.read(tmp_path / "launch.sh")
    assert nest.evaluate(found.model, cluster, found.job,
                         found.configuration).step_time_s == plan.step_time_s
