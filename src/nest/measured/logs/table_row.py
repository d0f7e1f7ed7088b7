"""A log as a row of a table of measured runs: the columns of :mod:`nest.measured.validation`."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.evaluation.evaluate import layout_text
from nest.inputs.configuration import Configuration
from nest.inputs.files import csv_cell
from nest.inputs.job import Job, Stack
from nest.inputs.loading import load_stack
from nest.inputs.model import Model
from nest.measured.logs.run_log import RunLog
from nest.measured.validation import runs, translate
from nest.measured.validation.cells import COLUMNS, NEEDED
from nest.model import build_chain
from nest.schedules.registry import SCHEDULES

_MLA = {"q_lora_rank": "q_rank", "kv_lora_rank": "kv_rank", "qk_nope_head_dim": "nope_dim",
        "qk_rope_head_dim": "rope_dim", "v_head_dim": "value_dim"}
_MOE = {"n_experts": "experts", "top_k": "top_k", "d_ff_expert": "ffn", "d_ff_shared": "shared_ffn",
        "first_dense": "first_dense", "n_expert_groups": "groups", "top_k_groups": "group_limit"}
_FREE = frozenset({"name", "source", "max_seq_len", "published_parameters", "head_dim"})
"""Fields of a model that no row has to say: they change no price, or follow."""


def table(log: RunLog, model: Model, job: Job, way: Configuration, devices: int,
          gpu: str = "", gpus_per_node: int | None = None) -> str:
    """The row, with a header, as CSV text.

    Parameters
    ----------
    model, job, way, devices : of the log's configuration.
    gpu : type of device; default: as the log prints it.
    gpus_per_node : devices of a node; default: 8, or all of fewer.

    Notes
    -----
    A run that ran out of memory has no step time. What the columns cannot say stands in ``notes``.
    """
    name = re.sub(r"[^\w.-]+", "-", Path(log.where).stem).strip("-")[:80] or "run"
    cells = _cells(log, name, model, job, way, devices, gpu, gpus_per_node)
    lost = _lost(cells, model, job, way)
    notes = [f"read from a log of {log.framework} {log.version}".strip(), *log.notes]
    if log.verdict != "ran":
        notes.append(log.verdict.replace("_", " "))
    if lost:
        notes.append(f"not in these columns: {', '.join(lost)}")
    cells["notes"] = "; ".join(notes)[:1900]
    columns = [column for column in COLUMNS if column in NEEDED or cells.get(column)]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerow([csv_cell(cells.get(column, "")) for column in columns])
    return stream.getvalue()


def _cells(log: RunLog, name: str, model: Model, job: Job, way: Configuration, devices: int,
           gpu: str, node: int | None) -> dict[str, str]:
    stage, chain = way.stages[0], build_chain(model)
    tp, cp, dp = stage.tp, stage.cp, stage.dp_in * way.outer_dp
    layout = layout_text(chain, way) if way.pp * way.vpp > 1 else None
    memory = log.peak_allocated_bytes or log.peak_reserved_bytes
    given: dict[str, Any] = {
        "run_id": name, "source_group": name, "source": log.where, "quality": "A",
        "model": model.name, "n_layers": model.layers, "d_model": model.hidden, "d_ff": model.ffn,
        "gated_mlp": int(model.gated), "n_heads": model.heads, "n_kv_heads": model.kv_heads,
        "head_dim": model.head_dim, "vocab": model.vocab, "seq_len": job.seq_len,
        "mtp_layers": model.mtp_layers or None, "gpu": gpu or log.device, "n_gpus": devices,
        "gpus_per_node": node or min(8, devices), "precision": job.precision,
        "framework": job.stack.name.removesuffix(" (changed)"), "tp": tp, "pp": way.pp,
        "dp": dp, "vpp": way.vpp, "cp": cp, "ep": stage.ep,
        "etp": stage.etp if stage.etp != tp else None, "sp": int(stage.sp),
        "zero_stage": stage.zero, "recompute": _recompute(way), "mbs": way.micro_batch
        // stage.dp_in, "gbs_seqs": job.global_batch, "layout": layout,
        "fsdp_shard": stage.dp_in * cp if stage.zero and stage.shard == "dp_in"
        and way.outer_dp > 1 else None,
        "flash_attention": int(job.stack.flash_attention),
        "schedule": "none" if way.pp == 1 else SCHEDULES[way.schedule].label,
        "ep_overlap": 1 if way.schedule == "combined" else None,
        "offload": way.offload, "optimizer": job.optimizer,
        "step_time_s": None if log.verdict == "out_of_memory" or log.step_time_s is None
        else f"{log.step_time_s:.6g}",
        "peak_mem_gb": f"{memory / 2**30:.6g}" if memory else None,
        "mem_note": None if memory is None else
        "GiB allocated" if log.peak_allocated_bytes else "GiB reserved"}
    if model.moe is not None:
        given |= {column: getattr(model.moe, field) for column, field in _MOE.items()}
        given |= {"dispatcher": job.stack.dispatcher, "routing": job.routing}
    if model.mla is not None:
        given |= {column: getattr(model.mla, field) for column, field in _MLA.items()}
    given["cuda_graphs"] = {"step": "full_iteration", "layers": "attn", "none": "none"}[
        job.stack.cuda_graphs]
    return {column: "" if value is None else str(value) for column, value in given.items()}


def _recompute(way: Configuration) -> str:
    stage = way.stages[0]
    if stage.recompute == "selective":
        return f"selective: {'+'.join(stage.recompute_modules)}"
    if stage.recompute == "full" and stage.recompute_layers is not None:
        return f"full, {stage.recompute_layers} layers"
    return stage.recompute


def _lost(cells: dict[str, str], model: Model, job: Job, way: Configuration) -> list[str]:
    """What a row says otherwise than the configuration, read back on any device."""
    whole = {**dict.fromkeys(NEEDED, ""), **cells, "step_time_s": "1", "gpu": "h100-sxm"}
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([whole.keys(), map(csv_cell, whole.values())])
    try:
        found = translate.question(runs.parse(stream.getvalue(), "row")[0])
    except InputError as error:
        return [f"a price ({' '.join(str(error).split())[:200]})"]
    lost = [f"model.{field} {getattr(model, field)!s:.40}" for field in Model.model_fields
            if field not in _FREE and getattr(found.model, field) != getattr(model, field)]
    ours, theirs = way.stages[0], found.configuration.stages[0]
    lost += [f"{field} {getattr(ours, field)!s:.40}" for field in type(ours).model_fields
             if field not in ("shard", "devices", "dp_in") and getattr(ours, field) != getattr(
                 theirs, field)]
    if (way.vpp, way.schedule, way.offload) != (
            found.configuration.vpp, found.configuration.schedule, found.configuration.offload):
        lost.append(f"schedule {way.schedule}")
    own = job.stack
    usual = load_stack(own.name.removesuffix(" (changed)"))
    lost += [f"{field} {getattr(own, field)!s:.40}" for field in Stack.model_fields
             if field not in ("name", "dispatcher", "flash_attention", "cuda_graphs")
             and getattr(own, field) != getattr(usual, field)]
    return lost
