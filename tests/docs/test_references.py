"""Every reference to code, in docstrings, comments and documents, names something that is there.

Sources are read as text and syntax trees: nothing is imported, so kernels need no compiler. A name
counts as defined where its module assigns, defines or imports it, and that of a class where the
class, a base or a method (``self.name``) does.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "nest"
FOLDERS = (ROOT, PACKAGE, ROOT / "tests", ROOT / "bench", ROOT / "docs",
           ROOT / "docs" / "site")
"""Where a path in a text may start; that of the text's own folder besides."""
SOURCES = sorted(path for folder in (PACKAGE, ROOT / "tests", ROOT / "bench")
                 for path in folder.rglob("*.py"))
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])

OTHERS_FILES = frozenset({
    # of a package that adds to NEST
    "acme/__init__.py", "acme/code.py", "acme/entries/__init__.py", "__init__.py", "clusters/",
    "models/",
    "count.py", "prepare.py", "train.py", "x.py",
    "megatron/core/models/hybrid/hybrid_layer_allocation.py",
    "src/megatron/bridge/models/hybrid/hybrid_provider.py",
    # what launchers are given, and their own
    "submit.py", "ray_launch.py", "ray.py", "nemo_run.py", "FOLDER/submit.py",
    "sky/utils/schemas.py",
    "megatron/core/pipeline_parallel/zerobubble/scheduler/zbv_greedy.py", "zerobubble/runtime.py",
    "zbv_greedy.py",
    "deepspeed/comm/config.py", "src/axolotl/core/builders/base.py",
    "src/axolotl/utils/config/__init__.py", "src/axolotl/utils/schemas/config.py",
    "src/axolotl/utils/schemas/training.py", "src/llamafactory/hparams/data_args.py",
    "src/llamafactory/hparams/finetuning_args.py", "src/llamafactory/hparams/model_args.py",
    "src/llamafactory/model/model_utils/checkpointing.py",
    "deepspeed/runtime/config_utils.py", "deepspeed/runtime/zero/partitioned_param_coordinator.py",
    "deepspeed/runtime/zero/stage3.py", "deepspeed/runtime/zero/stage_1_and_2.py",
    "gpt_builders.py", "megatron/core/models/backends.py", "megatron/model/transformer.py",
    "megatron/core/rerun_state_machine.py", "apex/contrib/optimizers/distributed_fused_adam.py",
    "nemo/collections/nlp/models/language_modeling/megatron_base_model.py",
    "nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py",
    "megatron/neox_arguments/arguments.py", "src/nanotron/config/config.py",
    "src/nanotron/models/base.py", "src/nanotron/models/llama.py",
    "megatron/neox_arguments/neox_args.py", "src/accelerate/utils/dataclasses.py",
    "src/nanotron/config/parallelism_config.py", "src/transformers/integrations/deepspeed.py",
    "src/transformers/training_args.py", "torchtitan/components/loss.py",
    "parallelize.py", "probe.py", "PROBE.py", "run.py", "plan_config.py", "plan_recipe.py",
    "_utils.py", "alpa/pipeline_parallel/layer_construction.py",
    "alpa/pipeline_parallel/stage_construction.py", "alpa/pipeline_parallel/stage_profiling.py",
    "astra-sim-alibabacloud/inputs/topo/gen_Topo_Template.py", "calculon/llm/validation.py",
    "configs/7B_sft.py", "deepspeed/launcher/launch.py", "deepspeed/launcher/runner.py",
    "deepspeed/runtime/config.py", "deepspeed/runtime/pipe/engine.py",
    "deepspeed/runtime/constants.py", "models/llama/modeling_llama.py",
    "megatron/training/training_config.py", "src/megatron/bridge/recipes/qwen/h100/qwen3_moe.py",
    "megatron/core/optimizer/muon.py", "megatron/core/optimizer/layer_wise_optimizer.py",
    "torchtitan/distributed/flex_shard/dist_muon.py",
    "deepspeed/runtime/pipe/module.py", "deepspeed/runtime/precision_config.py",
    "deepspeed/runtime/engine.py", "deepspeed/runtime/zero/config.py",
    "deepspeed/runtime/zero/offload_config.py",
    "megatron/core/model_parallel_config.py", "megatron/core/num_microbatches_calculator.py",
    "megatron/core/tokenizers/utils/build_tokenizer.py",
    "gpt_oss_provider.py",
    "MEGATRON/pretrain_gpt.py", "MEGATRON_DEEPSPEED/pretrain_gpt.py", "megatron/arguments.py",
    "megatron/core/distributed/distributed_data_parallel_config.py",
    "megatron/core/optimizer/optimizer_config.py",
    "megatron/core/pipeline_parallel/schedules.py",
    "megatron/core/tensor_parallel/cross_entropy.py", "megatron/core/tensor_parallel/mappings.py",
    "megatron/core/ssm/mamba_context_parallel.py", "megatron/core/ssm/gated_delta_net/gdn.py",
    "megatron/core/transformer/moe/moe_utils.py",
    "megatron/core/transformer/moe/token_dispatcher.py",
    "megatron/core/transformer/transformer_config.py", "megatron/training/arguments.py",
    "megatron_base_model.py",
    "galvatron/core/cost_model/components/embedding_lmhead_cost.py",
    "galvatron/core/cost_model/components/layer_cost.py", "galvatron/core/profiler/utils.py",
    "galvatron/utils/config_utils.py",
    "nest/GraphExtractor/models/bert.py", "nest/Solver/baselines_tpuv4_fatTree/128/"
    "baseline_configs_Manual.py", "nest/Solver/solver.py", "parallelize_llama.py",
    "pretrain_gpt.py",
    "src/maxtext/configs/pyconfig_deprecated.py", "src/maxtext/configs/types.py",
    "src/maxtext/utils/max_utils.py", "src/megatron/bridge/training/comm_overlap.py",
    "src/megatron/bridge/training/config.py", "src/megatron/bridge/training/mixed_precision.py",
    "src/megatron/bridge/models/gpt_provider.py", "src/megatron/bridge/utils/cuda_graph.py",
    "src/megatron/bridge/recipes/common.py", "src/megatron/bridge/training/pretrain.py",
    "src/megatron/bridge/training/utils/omegaconf_utils.py",
    "src/megatron/bridge/training/utils/moe_token_drop.py",
    "scripts/performance/helpers.py", "scripts/performance/run_script.py", "solver.py",
    "torch/distributed/fsdp/_fully_shard/_fully_shard.py", "metaseq/launcher/opt_baselines.py",
    "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "_fsdp_param.py",
    "torch/distributed/pipelining/schedules.py", "torch/distributed/pipelining/stage.py",
    "torch/distributed/tensor/experimental/_context_parallel/_attention.py",
    "torch/distributed/tensor/experimental/_context_parallel/_cp_custom_ops.py",
    "torch/distributed/tensor/parallel/style.py",
    "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py",
    "torch/utils/checkpoint.py", "torchtitan/config/configs.py",
    "torchtitan/config/job_config.py", "torchtitan/distributed/activation_checkpoint.py",
    "torchtitan/distributed/pipeline_parallel.py", "torchtitan/models/llama3/config_registry.py",
    "torchtitan/models/llama3/infra/parallelize.py", "torchtitan/trainer.py",
    "torchtitan/parallelisms/parallelize_llama.py",
    "transformer_engine/pytorch/cross_entropy.py",
    # of adapters and the loss
    "megatron/core/pipeline_parallel/p2p_communication.py",
    "bitsandbytes/autograd/_functions.py", "src/axolotl/loaders/model.py",
    "src/liger_kernel/ops/fused_linear_cross_entropy.py", "src/megatron/bridge/peft/lora.py",
    "src/megatron/bridge/peft/utils.py", "transformer_engine/pytorch/module/linear.py",
    "liger_kernel/transformers/monkey_patch.py", "src/axolotl/integrations/liger/plugin.py",
    "src/axolotl/integrations/cut_cross_entropy/args.py", "torchtitan/components/lora.py",
    "src/llamafactory/model/model_utils/liger_kernel.py", "trl/trainer/model_config.py",
    "torchtitan/models/common/attention.py", "torchtitan/models/llama3/state_dict_adapter.py",
    # of MaxText's policies
    "src/maxtext/layers/decoders.py", "src/maxtext/layers/nnx_decoders.py",
    "src/maxtext/layers/attentions.py", "src/maxtext/layers/attention_op.py",
    "src/maxtext/layers/linears.py", "src/maxtext/layers/moe.py",
    # of logs
    "callbacks.py", "logging.py", "pyconfig.py", "timer.py",
    "examples/nlp/language_modeling/megatron_gpt_pretraining.py",
    "flagscale/runner/runner_train.py", "megatron/training/tokenizer/tokenizer.py",
    "mlperf_logging/mllog/constants.py", "src/megatron/bridge/training/setup.py",
    "src/axolotl/cli/config.py", "src/maxtext/configs/pyconfig.py",
    "src/transformers/configuration_utils.py", "torchtitan/train.py",
    # of traces and snapshots
    "Lib/pickletools.py", "megatron/core/distributed/param_and_grad_buffer.py",
    "torch/cuda/_memory_viz.py", "torch/cuda/memory.py", "torch/nn/modules/linear.py",
    "torch/optim/adam.py",
})
"""Files of other projects, cited as sources, and files that are exported."""
OTHERS_NAMES = frozenset({
    # groups of entry points
    "nest.catalog", "nest.exports", "nest.logs", "nest.networks", "nest.planners",
    # Alpa
    "allow_replicated_parameters", "cluster_jaxpr_by_cost", "DEFAULT_EPS",
    "force_batch_dim_to_mesh_dim", "generate_training_stages_2d", "get_grad_sync_channel_ids",
    "get_one_submesh_autosharding_config_choices", "get_submesh_choices",
    "grad_acc_num_micro_batches", "num_micro_batches", "profile_all", "remat_layer",
    "skip_grad_sync",
    # Megatron-LM, NeMo, Transformer Engine, PyTorch, torchtitan
    "_apply_ac_to_transformer_block", "forward_backward_pipelining_with_interleaving",
    "fp8_model_init", "FusedAdam", "grad_reduce_in_fp32", "max_memory_allocated",
    "nvte_cast_transpose", "set_precision_configs", "torch.nn.functional.cross_entropy",
    # Phaze, Piper, the artifact of the published NEST evaluation
    "boundOnS", "fixedConfigTimePerBatch", "getAllTPSsForIdealPair", "getLoadOfStageForA",
    "getTimePerBatchForResult", "global_batch_size", "optimizer_type", "runDP",
    # NCCL and nccl-tests
    "alltoall_perf", "config.devices", "NCCL_TOPO_DUMP_FILE", "reduce_scatter_perf",
    "sendrecv_perf",
    # torchtitan, DeepSpeed
    "Trainer.Config", "deepspeed.initialize",
    # snapshots of PyTorch, pickles
    "_dump_snapshot", "_snapshot", "find_class", "pickle.Unpickler",
    # SciPy
    "scipy.cluster.hierarchy",
})
"""Names in the code of other projects."""
SUFFIXES = ("cc", "csv", "h", "json", "md", "png", "py", "svg", "toml", "yaml", "yml")
"""What ends a file's name: such a word is no dotted name."""


# ---------------------------------------------------------------- what is defined


class Scope:
    """Names of a module or a class, as its source defines them."""

    def __init__(self, node: ast.Module | ast.ClassDef) -> None:
        self.own: dict[str, Scope | None] = {}
        self.imported: dict[str, str] = {}
        self.bases = [ast.unparse(b) for b in node.bases] if isinstance(node, ast.ClassDef) else []
        for child in node.body:
            self._read(child)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            self.own[node.name] = Scope(node)
        elif isinstance(node, ast.FunctionDef):
            self.own[node.name] = None
            for child in ast.walk(node):
                if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) \
                        and child.value.id == "self" and isinstance(child.ctx, ast.Store):
                    self.own.setdefault(child.attr, None)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                self.imported[alias.asname or alias.name] = home + alias.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for child in ast.walk(target):
                    if isinstance(child, ast.Name):
                        self.own[child.id] = None
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for child in ast.iter_child_nodes(node):
                self._read(child)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def module(name: str) -> Scope | None:
    """The scope of a dotted module of the package, of the tests or of ``bench``."""
    parts = name.split(".")
    place = PACKAGE.joinpath(*parts[1:])
    paths = [place / "__init__.py", place.with_suffix(".py")] if parts[0] == "nest" else [
        path for path in SOURCES if not path.is_relative_to(PACKAGE) and path.stem == name]
    return next((Scope(tree(path)) for path in paths if path.is_file()), None)


def member(scope: Scope, home: str, parts: list[str]) -> bool:
    """Whether ``parts`` can be reached from a scope of module ``home``."""
    if not parts:
        return True
    name, rest = parts[0], parts[1:]
    if name in scope.own:
        inner = scope.own[name]
        return not rest or inner is not None and member(inner, home, rest)
    if name in scope.imported:
        at = scope.imported[name]
        return not at.startswith("nest.") or resolves(".".join((at, *rest)))
    here = module(home)
    return any(resolves(".".join((base, *parts)), home) for base in scope.bases
               if base in here.own or here.imported.get(base, "").startswith("nest."))


def resolves(name: str, home: str | None = None) -> bool:
    """Whether a name is a module or defined in one; ``home``: where it is looked for at first."""
    parts = name.split(".")
    if home is not None and (scope := module(home)) is not None and member(scope, home, parts):
        return True
    for cut in range(len(parts), 0, -1):
        at = ".".join(parts[:cut])
        if (scope := module(at)) is not None:
            return member(scope, at, parts[cut:])
    return False


@cache
def words(path: Path) -> frozenset[str]:
    """All identifiers in a source file, and words in its strings that are no sentences."""
    found = set()
    for node in ast.walk(tree(path)):
        for field in ("id", "attr", "name", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                found.update(name.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[\w. -]+", node.value):
                found.update(re.findall(r"\w+", node.value))
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
    return frozenset(found | {path.stem})


@cache
def every_word() -> frozenset[str]:
    """All identifiers of sources, and names in the frameworks' tables of settings."""
    names = {word for path in (PACKAGE / "frameworks").rglob("*.yaml") for name in re.findall(
        r"^ +([\w.-]+):", path.read_text(encoding="utf-8"), re.M) for word in name.split(".")}
    return frozenset(names).union(*(words(path) for path in SOURCES))


@cache
def classes() -> dict[str, list[str]]:
    """The modules of the package that have a class of a name."""
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        if path.is_relative_to(PACKAGE):
            for name, inner in module(dotted(path)).own.items():
                if inner is not None:
                    found.setdefault(name, []).append(dotted(path))
    return found


def names_something(name: str, home: str | None = None) -> bool:
    """Whether a word in backticks is a name of the code, or no name at all."""
    parts = name.split(".")
    if name in OTHERS_NAMES or parts[-1] in SUFFIXES or not is_python(name):
        return True
    if len(parts) == 1:
        return name in every_word()
    if resolves(name, home) or resolves(f"nest.{name}"):
        return True
    if parts[0] in classes():
        return any(resolves(f"{at}.{name}") for at in classes()[parts[0]])
    # A field of a document, as in `search.space` of a plan.
    return name == name.lower() and parts[0] != "nest" and all(
        part in every_word() and part[0] != "_" for part in parts)


def is_python(name: str) -> bool:
    """Whether a word looks like a name of the code: of several words, a class, or dotted."""
    return bool(re.search(r"_|[a-z][A-Z][a-z]|\.", name))


def dotted(path: Path) -> str:
    """The module of a file; those outside the package have their own name alone."""
    if not path.is_relative_to(PACKAGE):
        return path.stem
    parts = ("nest", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ---------------------------------------------------------------- what sources say


def texts(path: Path) -> Iterator[tuple[str, str]]:
    """Strings and comments of a source file, with the class that they are in ("": none)."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield "", token.string

    def strings(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                yield inside, child.value
            yield from strings(child, child.name if isinstance(child, ast.ClassDef) else inside)

    yield from strings(tree(path), "")


ROLE = re.compile(r":(?:class|func|mod|data|meth|attr|exc):`~?\.?([\w.]+)`")
NESTED = re.compile(r"(?<![\w./@-])nest((?:\.[a-z_]\w*)+(?:\.[A-Za-z_]\w*)*)(?!/\d|[\w/-])")
PYTHON = re.compile(r"(?<![\w/.<{*-])((?:[\w.-]+/)*\w+\.py)\b")
PAGE = re.compile(r"\bdocs/[\w.-]+\.md\b")
TICKED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`")


def exists(name: str, beside: Path) -> bool:
    """Whether a path leads to a file from one of the folders, or from that of the text.

    Tests name each other without their folders.
    """
    if beside.is_relative_to(ROOT / "tests") and any(path.name == name for path in SOURCES):
        return True
    return any((folder / name).exists() for folder in (*FOLDERS, beside))


def stale(text: str, home: str, inside: str, beside: Path) -> Iterator[str]:
    """References of a text in a source file that lead nowhere."""
    for name in ROLE.findall(text):
        if not (resolves(name, home) or inside and resolves(f"{inside}.{name}", home)):
            yield f":`{name}`"
    text = ROLE.sub("", text)
    for name in NESTED.findall(text):
        if not resolves(f"nest{name}") and name.rpartition(".")[2] not in SUFFIXES \
                and f"nest{name}" not in OTHERS_NAMES:
            yield f"nest{name}"
    for name in PYTHON.findall(text):
        if name not in OTHERS_FILES and not exists(name, beside):
            yield name
    for name in PAGE.findall(text):
        if not (ROOT / name).exists():
            yield name
    if home.startswith("nest"):
        yield from (name for name in TICKED.findall(text) if not names_something(name, home))


@pytest.mark.parametrize("path", [path for path in SOURCES if path != Path(__file__)],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_references_in_sources(path: Path) -> None:
    found = [name for inside, text in texts(path)
             for name in stale(text, dotted(path), inside, path.parent)]
    assert not found


def test_a_folder_names_its_own_modules() -> None:
    """What the docstring of a folder lists is there; if it lists most files, it lists all."""
    for path in PACKAGE.rglob("__init__.py"):
        own = {p.stem for p in path.parent.iterdir() if p.suffix == ".py" and p != path} | {
            p.name for p in path.parent.iterdir() if (p / "__init__.py").exists()}
        said = ast.get_docstring(tree(path)) or ""
        for name in re.findall(r"`([a-z_][\w/]*)`", said):
            assert name in own | every_word() or exists(f"{name}.py", path.parent), (path, name)
        listed = set(re.findall(r"`(\w+)`", said)) & own
        assert 2 * len(listed) < len(own) or listed == own, (path, own - listed)


# ---------------------------------------------------------------- what documents say


def unfenced(path: Path) -> str:
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def pieces(path: Path) -> list[str]:
    """Paragraphs, list items and table rows of a document, a line each."""
    found = [""]
    for line in unfenced(path).splitlines():
        if not line.strip() or re.match(r" *(?:[-*]|\d+\.) |\||#", line):
            found.append("")
        found[-1] += " " + line.strip()
    return [piece.strip() for piece in found if piece.strip()]


def paths_of(piece: str) -> list[Path]:
    """Source files that a piece of a document names, in backticks or as a link."""
    named = re.findall(r"`((?:[\w.-]+/)*\w+\.py)`", piece)
    named += re.findall(r"\]\((?:\.\./)*((?:[\w.-]+/)*\w+\.py)\)", piece)
    return [folder / name for name in named for folder in FOLDERS if (folder / name).is_file()]


def anchors(path: Path) -> set[str]:
    lines = unfenced(path).splitlines()
    return {re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            for line in lines if line.startswith("#")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links(path: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, part = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        exists = place.exists() and place.is_relative_to(ROOT.resolve())
        if not exists or part and part not in anchors(place):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_in_documents(path: Path) -> None:
    wrong = []
    for name in re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.py|(?:[a-z_]+/)+)`", unfenced(path)):
        if name not in OTHERS_FILES and not exists(name, path.parent):
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_documents(path: Path) -> None:
    assert [name for name in TICKED.findall(unfenced(path)) if not names_something(name)] == []


FILE = r"(?:`(?:[\w.-]+/)*\w+\.py`|\[[^\]]*\]\([^)]*\.py\))"
NAMES = r"`\w+`(?:(?:,| and|, and| or) `\w+`)*"
INSIDE = re.compile(rf"({NAMES}) (?:in|of|\()\(?({FILE})|({FILE}) has ({NAMES})")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_beside_files_are_in_them(path: Path) -> None:
    """In "`x` in `file.py`" the file has an x.

    In a list item of CONTRIBUTING, and in the last column of the glossary, every name is in one of
    the files that are named with it.
    """
    wrong = []
    for piece in pieces(path):
        for one, place, other, more in INSIDE.findall(piece):
            for name in re.findall(r"`(\w+)`", one + more):
                if not any(name in words(file) for file in paths_of(place or other)):
                    wrong.append(f"{name} in {place or other}")
        said = piece.split("|")[-2] if path.name == "glossary.md" and "|" in piece else piece
        whole = path.name == "glossary.md" or (
            path.name == "CONTRIBUTING.md" and re.match(r"\d|-", piece))
        if whole and (files := paths_of(said)):
            wrong += [name for name in re.findall(r"`([A-Za-z_]\w*)`", said)
                      if (is_python(name) or name[0].isupper())
                      and not any(name in words(file) for file in files)]
    assert not wrong


# ---------------------------------------------------------------- the check itself


@pytest.mark.parametrize("text", [
    ":func:`nest.costs.links.Links`", ":func:`never_there`", "see `nest.evaluation.gone`",
    "``_kernels/gone.py``", "docs/gone.md", "`Formulation.never_there`", "`never_there_at_all`",
])
def test_what_is_gone_is_found(text: str) -> None:
    assert list(stale(text, "nest.search.tensors", "Formulation", PACKAGE / "search"))


@pytest.mark.parametrize("text", [
    ":func:`nest.costs.stage.chunk_costs`", ":meth:`degrees`", ":class:`Formulation`",
    "see `nest.evaluate`", "``_kernels/options.py``", "docs/glossary.md", "`Formulation.degrees`",
    "`nest.plan/1`", "`layer_gap`", "config.json",
])
def test_what_is_there_is_not(text: str) -> None:
    assert not list(stale(text, "nest.search.tensors", "Formulation", PACKAGE / "search"))
