"""Tables of measured training runs: from CSV text to frozen rows.

A table has one run a row; `docs/accuracy.md` describes the columns. An empty cell is not known, or
follows from other sources, with the reason; a run that lacks an input of its price has the reason
why it is not priced. No run is dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import NamedTuple

from nest.inputs import catalog
from nest.inputs.files import read_text
from nest.measured.table import refuse, rows
from nest.measured.validation.cells import (
    COLUMNS,
    NEEDED,
    offload,
    precision,
    real,
    recompute,
    whole,
)
from nest.measured.validation.hardware import device_name
from nest.units import shorten

OWN = "catalog/runs.csv"


@dataclass(frozen=True, eq=False)
class Run:
    """A measured training run; two runs are equal only when they are the same object."""

    run_id: str
    group: str
    """Runs that are scored together."""
    quality: str
    model: str
    framework: str
    """Training software with its version."""
    measured_s: float | None
    """Seconds of a step: as stated, else computed from a stated rate; None: neither is known."""
    measured_memory: float | None
    """Bytes of the fullest device; None: not known."""
    memory_counted: str
    """What the bytes count: allocated, reserved (by the allocator) or total (nvidia-smi)."""
    notes: str
    source: str
    line: int
    """Line of the file, from 1."""
    fields: Mapping[str, str]
    """The row's own cells by column, without spaces at the ends; an empty one is not known."""
    inferred: Mapping[str, Inference]
    """Cells that the row leaves empty and that follow from elsewhere, with the reason."""
    anomalous: bool
    """The measurement contradicts its neighbours; scores are given without it too."""
    reason: str | None
    """Why the run is not priced; None: it can be."""

    @property
    def configured(self) -> Run:
        """The run, to be priced even where no step time is known."""
        if self.measured_s is not None:
            return self
        known = {name: self.text(name) for name in (*self.fields, *self.inferred)}
        return replace(self, reason=unpriced({**known, "step_time_s": "1"}))

    def text(self, column: str) -> str:
        """A cell as text, inferred where the row leaves it empty; empty: not known."""
        given = self.fields.get(column, "")
        return given or (self.inferred[column].value if column in self.inferred else "")

    def whole(self, column: str) -> int | None:
        """A cell as a whole number; None where it is empty."""
        return whole(self.text(column))

    def real(self, column: str) -> float | None:
        """A cell as a number; None where it is empty."""
        return real(self.text(column))

    def degree(self, column: str) -> int:
        """A cell as a degree; 1 where it is empty."""
        return self.whole(column) or 1


def read(
    path: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
) -> tuple[Run, ...]:
    """Read a table of measured runs.

    Parameters
    ----------
    path : a CSV file; None: the project's own table.
    annotations : a CSV file of further cells, by run_id; they replace those of the table.

    Returns
    -------
    tuple of Run
        In the order of the file.

    Raises
    ------
    InputError
        The file cannot be read, is empty, lacks a column, or has a cell that is not allowed; each
        problem names file, line and column.
    """
    more = {} if annotations is None else _annotations(
        read_text(annotations), shorten(os.fspath(annotations), 300)[1:-1])
    if path is None:
        entry = resources.files("nest") / "catalog" / "runs.csv"
        return parse(entry.read_text(encoding="utf-8"), OWN, more)
    return parse(read_text(path), shorten(os.fspath(path), 300)[1:-1], more)


def _annotations(text: str, where: str) -> dict[str, dict[str, str]]:
    """Cells that are not empty, by run_id; notes are added to those of the run.

    Raises
    ------
    InputError : as :func:`read`.
    """
    found: dict[str, dict[str, str]] = {}
    for row in rows(text, where, {"run_id": NEEDED["run_id"]}):
        given = {column: cell for column, cell in row.cells.items() if cell and column in COLUMNS}
        refuse(_cell_problems(given, row.place), where)
        found[given.pop("run_id", "")] = given
    return found


def parse(
    text: str, where: str, annotations: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[Run, ...]:
    """Read CSV text with a header line; lines that start with # are comments.

    Parameters
    ----------
    where : start of messages, such as the file name.
    annotations : further cells by run_id.

    Raises
    ------
    InputError : as :func:`read`.
    """
    problems: list[str] = []
    found: list[Run] = []
    lines: dict[str, int] = {}
    for row in rows(text, where, NEEDED, COLUMNS):
        fields = {column: cell for column, cell in row.cells.items() if column in COLUMNS}
        problems += _cell_problems(fields, row.place)
        name = fields["run_id"]
        if name in lines:
            problems.append(f"{row.place}: run_id: got {shorten(name)} again, after line "
                            f"{lines[name]}; allowed: once")
        lines[name] = row.line
        if not problems:
            found.append(_run(_annotated(fields, (annotations or {}).get(name, {})), row.line))
    refuse(problems, where)
    return tuple(found)


def _annotated(fields: dict[str, str], more: Mapping[str, str]) -> dict[str, str]:
    notes = "; ".join(filter(None, (each.get("notes") for each in (fields, more))))
    return {**fields, **more, "notes": notes} if more else fields


def _cell_problems(fields: Mapping[str, str], place: str) -> list[str]:
    found = []
    for column, text in fields.items():
        allowed = COLUMNS[column].problem(text) if text else None
        if allowed:
            found.append(f"{place}: {column}: got {shorten(text)}; allowed: {allowed}")
    found += [f"{place}: {column}: is empty; needed: {NEEDED[column]}"
              for column in ("run_id", "model", "framework") if fields.get(column) == ""]
    return found


def _run(fields: dict[str, str], line: int) -> Run:
    stated = fields["step_time_s"] or fields.get("step_time_s_derived", "")
    memory, counted = _memory(fields)
    more = inferred(fields)
    known = {**fields, **{column: found.value for column, found in more.items()}}
    return Run(
        run_id=fields["run_id"],
        group=fields.get("source_group") or fields["framework"],
        quality=fields.get("quality", ""),
        model=fields["model"],
        framework=fields["framework"],
        measured_s=real(stated),
        measured_memory=memory,
        memory_counted=counted,
        notes=fields.get("notes", ""),
        source=fields.get("source", ""),
        line=line,
        fields=fields,
        inferred=more,
        anomalous=anomalous(fields),
        reason=unpriced(known),
    )


def _memory(fields: Mapping[str, str]) -> tuple[float | None, str]:
    """Bytes, and how they are counted.

    nvidia-smi prints MiB, which tables convert to GiB; sources that divide by 1e9 say so.
    """
    note = fields.get("mem_note", "").lower()
    unit = 1e9 if re.search(r"1e9|\bgb\b", note) else 2.0**30
    counted = ("total" if "nvidia-smi" in note else
            "reserved" if "reserved" in note else "allocated")
    size = real(fields.get("peak_mem_gb", ""))
    return (None if size is None else size * unit), counted


# ---------------------------------------------------------------- inferred


Fields = Mapping[str, str]


class Inference(NamedTuple):
    """A cell that a row leaves empty."""

    value: str
    why: str


ANOMALOUS = frozenset(f"vtrain_multi_{number:04d}" for number in (13, 15, 20, 50, 80))
"""Runs of the vTrain study (VIA-Research/vTrain, config/validation) that take 1.3 to 2 times as
long as their neighbours, which differ only in the micro-batch."""

_VOCAB = (
    # family by the model's name, catalog model whose vocabulary it shares
    (r"llama-?2", "llama2-7b"),
    (r"llama-?3", "llama3-70b"),
    (r"gpt-?3|gpt-?\d+b \(pax\)", "gpt3-175b"),
)
_NEMOTRON_VOCAB = "256000"  # NVIDIA/NeMo-Framework-Launcher conf/training/nemotron; Nemotron-4 too
_GPT_OSS_HEAD_DIM = "64"  # kv_channels in NVIDIA-NeMo/Megatron-Bridge v0.3.0 gpt_oss_provider.py
_GPT_OSS_WINDOW = "128, every 2nd layer"  # layer_types in config.json of openai/gpt-oss-120b


def anomalous(fields: Fields) -> bool:
    """Whether a measurement contradicts its neighbours: it is listed, or its notes say so."""
    notes = fields.get("notes", "").lower()
    told = re.search(r"anomalous|known \w* ?regression", notes)
    return fields["run_id"] in ANOMALOUS or told is not None


def inferred(fields: Fields) -> dict[str, Inference]:
    """Cells that a row leaves empty and that follow from other sources, by column."""
    found: dict[str, Inference] = {}
    for rule in _RULES:
        for column, inference in rule(fields).items():
            if not fields.get(column, ""):
                found[column] = inference
    return found


_SIZES = ("n_layers", "d_model", "d_ff", "n_heads", "n_experts")


def named_model(fields: Fields) -> str | None:
    """The catalog's model of a row that states no size, by the beginning of its name, if one."""
    name = _plain(fields["model"])
    if any(fields.get(column) for column in _SIZES) or not name:
        return None
    known = {_plain(one): one for one in catalog.names("models")}
    found = [known[name]] if name in known else [
        one for text, one in known.items() if text.startswith(name)]
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _named_sizes(fields: Fields) -> dict[str, Inference]:
    """Sizes of the catalog's model that a row names instead of stating its own."""
    name = named_model(fields)
    if name is None:
        return {}
    model = catalog.load("models", name)
    values = {"n_layers": model["layers"], "d_model": model["hidden"], "d_ff": model["ffn"],
              "n_heads": model["heads"], "vocab": model["vocab"], "gated_mlp": int(model["gated"])}
    if "moe" in model:
        values |= {"n_experts": model["moe"]["experts"], "top_k": model["moe"]["top_k"],
                   "d_ff_expert": model["moe"]["ffn"]}
    values |= {column: model["mla"][key] for column, key in _LATENT.items() if "mla" in model}
    return {column: Inference(str(value), f"no size is stated: the catalog's {name}")
            for column, value in values.items()}


def _vocabulary(fields: Fields) -> dict[str, Inference]:
    name = fields["model"].lower()
    for family, model in _VOCAB:
        if re.match(family, name):
            size = str(catalog.load("models", model)["vocab"])
            return {"vocab": Inference(size, f"vocabulary of {model}")}
    if name.startswith("nemotron"):
        return {"vocab": Inference(_NEMOTRON_VOCAB, "vocabulary of the Nemotron recipes")}
    return {}


def _head_width(fields: Fields) -> dict[str, Inference]:
    """Width of a head if it is not hidden / heads."""
    if re.match(r"gpt[- _]?oss", fields["model"].lower()):
        return {"head_dim": Inference(_GPT_OSS_HEAD_DIM, "width of a head of GPT-OSS"),
                "attention_window": Inference(_GPT_OSS_WINDOW, "windows of GPT-OSS")}
    for name in catalog.names("models"):
        model = catalog.load("models", name)
        sizes = [model.get(key) for key in ("hidden", "heads", "kv_heads")]
        given = [_whole(fields, key) for key in ("d_model", "n_heads", "n_kv_heads")]
        if "head_dim" in model and given == sizes:
            return {"head_dim": Inference(str(model["head_dim"]), f"width of a head of {name}")}
    return {}


_LATENT = {"q_lora_rank": "q_rank", "kv_lora_rank": "kv_rank", "qk_nope_head_dim": "nope_dim",
           "qk_rope_head_dim": "rope_dim", "v_head_dim": "value_dim"}
_EXPERTS = {"d_ff_shared": "shared_ffn", "first_dense": "first_dense", "n_expert_groups": "groups",
            "top_k_groups": "group_limit"}


def _catalog_layers(fields: Fields) -> dict[str, Inference]:
    """Latent attention and shared experts of the catalog's model with the same layers.

    A row that states part of latent attention or of the experts states all of it.
    """
    sizes = [_whole(fields, key) for key in ("d_model", "n_heads", "n_experts", "d_ff_expert")]
    for name in catalog.names("models"):
        model = catalog.load("models", name)
        moe = model.get("moe") or {}
        if None in sizes[:3] or sizes[:3] != [model["hidden"], model["heads"], moe.get("experts")]:
            continue
        if sizes[3] not in (None, moe["ffn"]):
            continue
        found: dict[str, Inference] = {}
        if "mla" in model and not fields.get("kv_lora_rank"):
            found |= {column: Inference(str(model["mla"][key]), f"latent attention of {name}")
                      for column, key in _LATENT.items()}
        if not fields.get("n_shared_experts"):
            found |= {column: Inference(str(moe[key]), f"experts of {name}")
                      for column, key in _EXPERTS.items() if key in moe}
        return found
    return {}


def _shared_experts(fields: Fields) -> dict[str, Inference]:
    """Width of the shared experts, from their number."""
    number, each = _whole(fields, "n_shared_experts"), _whole(fields, "d_ff_expert")
    if not number or each is None:
        return {}
    return {"d_ff_shared": Inference(str(number * each), "n_shared_experts x d_ff_expert")}


def _dispatcher(fields: Fields) -> dict[str, Inference]:
    """Dispatcher and overlap of experts' traffic that the notes or the framework name."""
    if not fields.get("n_experts"):
        return {}
    words = f"{fields.get('notes', '')} {fields['framework']}".lower()
    found = {}
    named = re.search(r"hybrid-?ep|deep-?ep", words)
    if named:
        found["dispatcher"] = Inference(named[0].replace("-", ""), "named in the notes")
    if "moe_a2a_overlap=true" in words:
        found["ep_overlap"] = Inference("1", "moe_a2a_overlap in the notes")
    return found


def _routing(fields: Fields) -> dict[str, Inference]:
    """What balances the experts of a run whose notes say that nothing forces them."""
    words = fields.get("notes", "").lower()
    if not fields.get("n_experts") or not re.search(r"not forced|no forced balance", words):
        return {}
    loss = re.search(r"(aux|balancing) loss", words)
    return {"routing": Inference("loss" if loss else "none", "not forced, in the notes")}


def _mlp_width(fields: Fields) -> dict[str, Inference]:
    """InternLM's MLP: 8/3 of the width, up to the next 256 (InternLM/InternEvo configs/7B_sft.py).
    """
    width = _whole(fields, "d_model")
    if not fields["model"].lower().startswith("internlm") or width is None:
        return {}
    size = -(-8 * width // (3 * 256)) * 256
    return {"d_ff": Inference(str(size), "8/3 of d_model, rounded up to 256")}


def _virtual_stages(fields: Fields) -> dict[str, Inference]:
    """vpp of a recipe that the notes name: `yaml: 175b 6, 13b 10, llama3-70b 5`."""
    listed = re.search(r"\byaml: ([^)]*)\)", fields.get("notes", ""))
    stages = _whole(fields, "pp")
    if listed is None or stages in (None, 1):
        return {"vpp": Inference("1", "no pipeline")} if stages == 1 else {}
    name = fields["model"].lower()
    recipes = dict(re.findall(r"([\w.-]+) (\d+)", listed[1]))
    for recipe in sorted(recipes, key=len, reverse=True):
        if name == recipe or name.endswith(f"-{recipe}"):
            return {"vpp": Inference(recipes[recipe], f"vpp of the recipe {recipe} in the notes")}
    return {}


def _sailor(fields: Fields) -> dict[str, Inference]:
    """Sailor's runs state neither number format nor recompute.

    Peak memory grows by 3.3 GB a sample of OPT-350M: all activations are kept.
    """
    if "sailor" not in fields["framework"].lower():
        return {}
    return {"precision": Inference("bf16", "16 bit, whichever costs the same"),
            "recompute": Inference("none", "peak memory grows with the micro-batch as without "
                                   "recompute")}


def _micro_batch(fields: Fields) -> dict[str, Inference]:
    """Samples a device takes at once, from the batch and the micro-batches of a step."""
    batch, dp, steps = (_whole(fields, name) for name in ("gbs_seqs", "dp", "grad_accum"))
    if batch is None or dp is None or steps is None or batch % (dp * steps):
        return {}
    return {"mbs": Inference(str(batch // (dp * steps)), "gbs_seqs / (dp x grad_accum)")}


def _degrees(fields: Fields) -> dict[str, Inference]:
    """dp from the devices and the other degrees."""
    devices, tp, pp = (_whole(fields, name) for name in ("n_gpus", "tp", "pp"))
    if devices is None or tp is None or pp is None:
        return {}
    others = tp * pp * (_whole(fields, "cp") or 1)
    if devices % others:
        return {}
    return {"dp": Inference(str(devices // others), "n_gpus / (tp x pp x cp)")}


def _whole(fields: Fields, column: str) -> int | None:
    return whole(fields.get(column, ""))


_RULES = (_named_sizes, _vocabulary, _head_width, _catalog_layers, _shared_experts, _dispatcher,
          _routing, _mlp_width, _virtual_stages, _sailor, _micro_batch, _degrees)

# ---------------------------------------------------------------- reasons


_PRICED = ("n_layers", "d_model", "d_ff", "n_heads", "vocab", "seq_len", "gated_mlp", "gpu",
           "n_gpus", "gpus_per_node", "precision", "tp", "pp", "dp", "vpp", "mbs", "gbs_seqs")
_LATENT_MODELS = re.compile(r"deepseek[-_ ]?(?:v?[23]|r1)|kimi[-_ ]?k2|moonlight")


def unpriced(cells: Mapping[str, str]) -> str | None:
    """Why a run cannot be priced, one cause; None: it can.

    Parameters
    ----------
    cells : the row by column, with inferred cells.
    """
    if not (cells["step_time_s"] or cells.get("step_time_s_derived")):
        return "no step time is stated"
    notes = cells.get("notes", "").lower()
    if offload(cells.get("offload", ""), notes) is None:
        return "offloads to the host what is not named"
    missing = [name for name in _PRICED if not cells.get(name)]
    if re.search(r"\(lora\)", cells["model"].lower()) or re.match(r"lora\b", notes):
        missing += [] if cells.get("lora") else ["lora"]
    if cells.get("n_experts"):
        missing += [name for name in ("top_k", "d_ff_expert") if not cells.get(name)]
    if cells.get("kv_lora_rank") or "mla" in re.findall(r"[a-z]+", cells.get("arch", "").lower()) \
            or _LATENT_MODELS.match(cells["model"].lower()):
        missing += [name for name in _LATENT
                    if name != "q_lora_rank" and not cells.get(name)]
    if missing:
        return f"not stated: {', '.join(missing)}"
    if precision(cells["precision"]) is None:
        return f"precision {cells['precision']}"
    if device_name(cells["gpu"], cells.get("gpu_mem_gb", "")) is None:
        return f"unknown gpu {cells['gpu']}"
    if not cells["recompute"]:
        return "not stated: recompute"
    if recompute(cells["recompute"]) is None:
        return f"recompute {cells['recompute']}"
    return _devices_problem(cells)


def _devices_problem(cells: Mapping[str, str]) -> str | None:
    """Degrees whose product is not the number of devices."""
    number = {name: int(float(cells.get(name) or 1))
              for name in ("tp", "pp", "dp", "cp", "n_gpus", "mbs", "gbs_seqs", "fsdp_shard")}
    product = number["tp"] * number["pp"] * number["dp"] * number["cp"]
    if product != number["n_gpus"]:
        return f"tp x pp x dp x cp = {product} is not n_gpus {number['n_gpus']}"
    if number["gbs_seqs"] % (number["mbs"] * number["dp"]):
        return (f"mbs x dp = {number['mbs'] * number['dp']} does not divide gbs_seqs "
                f"{number['gbs_seqs']}")
    shards = number["dp"] * number["cp"]
    if cells.get("fsdp_shard") and shards % number["fsdp_shard"]:
        return f"fsdp_shard {number['fsdp_shard']} does not divide dp x cp = {shards}"
    return None
