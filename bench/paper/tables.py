"""The results as CSV, Markdown, one JSON document, and a text for a terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from nest import __version__
from nest.inputs.files import csv_cell
from nest.report.comparison_text import short_number
from nest.report.page import Page
from paper.published import CLAIM, PLANNERS, RECOUNTED, Published, published
from paper.questions import BOUNDS, PARTS, bounds_text, marked
from paper.results import (
    BASE,
    OWN,
    Gain,
    Result,
    best_point_gain,
    distinct,
    gain,
    published_gain,
    select,
)

COLUMNS = (
    "part", "model", "cluster", "devices", "mbs", "global_batch", "seq_len", "planner", "bound",
    "feasible", "reason", "step_time_s", "samples_per_s", "tokens_per_s", "peak_memory_bytes",
    "relative", "nest_gain", "search_seconds", "plan",
)


def rows(found: Iterable[Result]) -> list[dict[str, Any]]:
    """Plain data of each result, with the keys of :data:`COLUMNS`."""
    listed = []
    for one in found:
        question, answer = one.asked.question, one.asked.answer
        listed.append({
            "part": question.part, "model": question.model, "cluster": question.cluster,
            "devices": question.devices, "mbs": question.mbs,
            "global_batch": question.global_batch, "seq_len": question.seq_len,
            "planner": one.asked.planner, "bound": BOUNDS.get(one.asked.planner),
            "feasible": answer.feasible, "reason": answer.reason,
            "step_time_s": answer.step_time_s, "samples_per_s": answer.samples_per_s,
            "tokens_per_s": answer.tokens_per_s, "peak_memory_bytes": answer.peak_memory_bytes,
            "relative": one.relative, "nest_gain": one.gain,
            "search_seconds": answer.search_seconds, "plan": answer.plan})
    return listed


def to_csv(found: Iterable[Result]) -> str:
    """A row for each result; an empty cell: there is no figure."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(found):
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{value:.6g}" if isinstance(value, float) else str(csv_cell(value))


def to_json(found: Sequence[Result]) -> str:
    """The results as one JSON document, schema `nest.paper/1`; gains by part and planner."""
    gains = {
        part: {planner: gain(select(found, part, planner=planner))._asdict()
               for planner in others(found)}
        for part in distinct(one.asked.question.part for one in found)}
    return json.dumps({"schema": "nest.paper/1", "version": __version__, "results": rows(found),
                       "gains": gains}, indent=2)


def others(found: Iterable[Result]) -> list[str]:
    """The planners but NEST."""
    return [name for name in distinct(one.asked.planner for one in found) if name != OWN]


def to_markdown(found: Sequence[Result]) -> str:
    """Throughputs, what is infeasible and why, gains, and the published figures beside them."""
    parts = distinct(one.asked.question.part for one in found)
    blocks = ["# The published evaluation, asked again"]
    for part in parts:
        blocks += [f"## {PARTS[part]}", *_throughputs(select(found, part))]
    if OWN in {one.asked.planner for one in found} and others(found):
        blocks += ["## Gain of NEST", *_gains(found, parts)]
        blocks += ["## Beside the published gains", *_published(found, parts)]
    blocks += ["## Search", _search(found)]
    return "\n\n".join(blocks) + "\n"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first columns are aligned left."""
    rule = ["---" if number < left else "---:" for number in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))


def _throughputs(found: Sequence[Result]) -> list[str]:
    """Relative throughputs of a part, and the reasons of what is infeasible."""
    planners = distinct(one.asked.planner for one in found)
    reasons: list[str] = []
    lines = []
    for question in dict.fromkeys(one.asked.question for one in found):
        cells = {}
        for one in found:
            if one.asked.question != question:
                continue
            answer = one.asked.answer
            if answer.feasible:
                cells[one.asked.planner] = "" if one.relative is None else f"{one.relative:.2f}"
            else:
                reasons.append(f"{len(reasons) + 1}. {question.model}, {question.devices:,} "
                               f"devices, micro-batch {question.mbs}, {one.asked.planner}: "
                               f"{answer.reason}")
                cells[one.asked.planner] = f"no ({len(reasons)})"
            if one.asked.planner == OWN:
                rate = answer.tokens_per_s if answer.feasible else None
                cells["rate"] = "" if rate is None else short_number(rate)
        lines.append([question.model, f"{question.devices:,}", str(question.mbs),
                      cells.get("rate", ""), *(cells[name] for name in planners)])
    heads = ["model", "devices", "micro-batch", f"{OWN}, tokens/s", *map(marked, planners)]
    blocks = [f"Throughput relative to `{BASE}` at the first point of the model at which it fits.",
              _table(heads, lines)]
    if reasons:
        blocks += ["Infeasible (no):", "\n".join(reasons)]
    return blocks


def _span(one: Gain, digits: int = 2) -> str:
    """Geometric mean, least and most."""
    if one.mean is None or one.least is None or one.most is None:
        return ""
    return f"{one.mean:.{digits}f} ({one.least:.{digits}f}..{one.most:.{digits}f})"


def _gains(found: Sequence[Result], parts: Sequence[str]) -> list[str]:
    lines = []
    planners = others(found)
    for part in parts:
        models = distinct(one.asked.question.model for one in select(found, part))
        lines += [[part, model, *(_span(gain(select(found, part, model, planner)))
                                  for planner in planners)] for model in models]
        lines.append([part, "all", *(_span(gain(select(found, part, planner=planner)))
                                     for planner in planners)])
    lines.append(["all", "all", *(_span(gain(select(found, planner=planner)))
                                  for planner in planners)])
    counts = [gain(select(found, planner=planner)).infeasible for planner in planners]
    lines.append(["all", "infeasible", *map(str, counts)])
    blocks = ["Throughput of NEST over that of each planner, where both are feasible: geometric "
              "mean (least..most).",
              _table(["part", "model", *map(marked, planners)], lines, 2)]
    blocks += [note for note in (bounds_text(planners),) if note]
    if "micro-batch" in parts:
        chosen = select(found, "micro-batch")
        best = []
        for model in distinct(one.asked.question.model for one in chosen):
            gains = [best_point_gain(select(chosen, model=model), planner)
                     for planner in planners]
            best.append([model, *("" if one is None else f"{one:.2f}" for one in gains)])
        blocks += ["The same on 256 devices, each planner at the micro-batch that is best for it:",
                   _table(["model", *map(marked, planners)], best)]
    return blocks


def _published(found: Sequence[Result], parts: Sequence[str]) -> list[str]:
    """Published, recounted and here, over the expert; published and here, over the others."""
    known = published()
    lines = []
    for part in parts:
        for model in distinct(one.asked.question.model for one in select(found, part)):
            said = [one for one in known if (one.part, one.model) == (part, model)]
            again = [one for one in select(found, part, model) if _is_among(one, said)]
            if not said or not again:
                continue
            low, high = RECOUNTED[model]
            cells = [part, model]
            for planner in PLANNERS:
                cells.append(_span(published_gain(said, planner)))
                if planner == BASE:
                    cells.append(f"{low:.2f}..{high:.2f}" if part == "scaling" else "")
                cells.append(_span(gain(select(again, planner=planner))))
            lines.append(cells)
    heads = ["part", "model"]
    for planner in PLANNERS:
        heads += [f"{planner}, published", *(["recounted"] if planner == BASE else []), "here"]
    most = max((one.gain for one in found
                if one.asked.planner in PLANNERS and one.gain is not None), default=None)
    claim = f"Most over any of {', '.join(PLANNERS)}: {CLAIM} claimed" + (
        "." if most is None else f", {most:.2f} here.")
    return ["At the points that were published. *Recounted*: by the artifact's own evaluator, had "
            "it counted the layers of the expert's stages right.", _table(heads, lines, 2), claim]


def _is_among(one: Result, said: Iterable[Published]) -> bool:
    question = one.asked.question
    return any((that.devices, that.mbs) == (question.devices, question.mbs) for that in said)


def _search(found: Sequence[Result]) -> str:
    lines = []
    for planner in distinct(one.asked.planner for one in found):
        seconds = [one.asked.answer.search_seconds for one in select(found, planner=planner)]
        lines.append([marked(planner), f"{sum(seconds):.1f}", f"{max(seconds):.1f}"])
    return _table(["planner", "seconds in all", "the longest"], lines)


def paper_text(
    found: Sequence[Result], files: Sequence[str], width: int = 80, colour: bool = False,
    unicode: bool = True,
) -> str:
    """Give the report of an evaluation.

    Parameters
    ----------
    found : of ``results`` in results.py.
    files : that were written.
    width, colour, unicode : as of :class:`nest.report.page.Page`.

    Returns
    -------
    str
        NEST's gain over each planner, the published gains beside it, what does not fit and why.
    """
    page = Page(width, colour, unicode)
    parts = distinct(one.asked.question.part for one in found)
    planners = others(found)
    if planners and any(one.asked.planner == OWN for one in found):
        for part in parts:
            _text_gains(page, select(found, part), part, planners)
        if bounds_text(planners):
            page.paragraph(bounds_text(planners), "dim")
            page.blank()
        if "scaling" in parts and BASE in planners:
            _text_published(page, select(found, "scaling"))
    missing = {(one.asked.question.model, one.asked.question.devices, one.asked.question.mbs,
                one.asked.planner): one.asked.answer.reason or ""
               for one in found if not one.asked.answer.feasible}
    if missing:
        page.paragraph("Infeasible", "bold")
        for (model, devices, mbs, planner), reason in missing.items():
            page.fact(planner, f"{model}, {devices:,} devices, micro-batch {mbs}: {reason}")
        page.blank()
    page.fact("Written", ", ".join(files))
    return page.text()


def _text_gains(page: Page, found: Sequence[Result], part: str, planners: Sequence[str]) -> None:
    """A table: models down, planners across; the last line counts what does not fit."""
    lines = []
    for model in [*distinct(one.asked.question.model for one in found), None]:
        means = [gain(select(found, model=model, planner=planner)).mean for planner in planners]
        lines.append((model or "all", *("-" if mean is None else f"{mean:.2f}" for mean in means)))
    counts = [gain(select(found, planner=planner)).infeasible for planner in planners]
    lines.append(("infeasible", *map(str, counts)))
    page.table(f"{PARTS[part]}: throughput of {OWN} over each planner's, geometric means",
               ("model", *map(marked, planners)), lines, (0,))
    page.blank()


def _text_published(page: Page, found: Sequence[Result]) -> None:
    known = [one for one in published() if one.part == "scaling"]
    lines = []
    for model in distinct(one.asked.question.model for one in found):
        said = published_gain([one for one in known if one.model == model], BASE)
        here = gain(select(found, model=model, planner=BASE))
        low, high = RECOUNTED.get(model, (None, None))
        lines.append((model, _range(said.least, said.most), _range(low, high),
                      _range(here.least, here.most)))
    page.table(f"Gain over {BASE}, TPUv4 fat tree (recounted: with the correct layer count of the "
               f"expert's plan; claimed over any planner: up to {CLAIM})",
               ("model", "published", "recounted", "here"), lines, (0,))
    page.blank()


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f}..{high:.2f}"
