"""Draws the pictures of concepts beside it: python docs/site/draw.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44")
STAGES = MICRO_BATCHES = 4
ARROW = ('<defs><marker id="a" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" '
         'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="#333"/></marker></defs>')
INSIDE = (("sequence of one sample, context parallel 4", [f"tokens {n}/4" for n in range(4)]),
          ("experts of a mixture, expert parallel 4",
           [f"experts {2 * n}, {2 * n + 1}" for n in range(4)]),
          ("states of the optimizer over the replicas, ZeRO 1", [f"shard {n}" for n in range(4)]))


def box(x: float, y: float, w: float, h: float, fill: str, label: str = "",
        opacity: float = 1) -> str:
    shape = (f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" '
             f'fill-opacity="{opacity:g}" stroke="#333"/>')
    return shape + (said(x + w / 2, y + h / 2 + 4, label, "middle") if label else "")


def said(x: float, y: float, text: str, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold" font-size="14"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{text}</text>'


def order(stage: int, micro_batches: int = MICRO_BATCHES) -> list[tuple[str, int]]:
    """Passes of a stage under 1F1B: forward (F) or backward (B), and the micro-batch."""
    begun = min(micro_batches, STAGES - stage)
    rows = [("F", n) for n in range(begun)]
    for done in range(micro_batches):
        rows.append(("B", done))
        if begun < micro_batches:
            rows.append(("F", begun))
            begun += 1
    return rows


def ends() -> dict[tuple[str, int, int], int]:
    """End of each pass by kind, micro-batch and stage; forward takes 1, backward 2."""
    found: dict[tuple[str, int, int], int] = {}
    left = [order(stage) for stage in range(STAGES)]
    free = [0] * STAGES
    while any(left):
        for stage, rows in enumerate(left):
            if not rows:
                continue
            kind, n = rows[0]
            last = stage == STAGES - 1
            before = (("F", n, stage - 1) if stage else None) if kind == "F" else (
                ("F", n, stage) if last else ("B", n, stage + 1))
            if before is None or before in found:
                rows.pop(0)
                start = max(free[stage], found.get(before, 0) if before else 0)
                free[stage] = found[kind, n, stage] = start + (1 if kind == "F" else 2)
    return found


def picture() -> str:
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1060 430" '
             'font-family="sans-serif" font-size="12" fill="#111">',
             "<title>The dimensions of a plan</title>",
             '<rect width="1060" height="430" fill="#fff"/>', ARROW,
             said(20, 28, "Two replicas (data parallel 2) of a pipeline of 4 stages", bold=True)]
    for replica in range(2):
        y = 50 + 95 * replica
        parts.append(said(20, y + 40, f"replica {replica}"))
        for stage, colour in enumerate(COLOURS):
            x = 100 + 118 * stage
            parts += [box(x, y, 100, 70, colour, opacity=0.25),
                      said(x + 50, y + 20, f"layers {8 * stage}–{8 * stage + 7}", "middle")]
            parts += [box(x + 6 + 46 * rank, y + 30, 42, 32, colour, f"tp {rank}", 0.75)
                      for rank in range(2)]
            if stage < STAGES - 1:
                parts.append(f'<path d="M{x + 101} {y + 35} h14" stroke="#333" '
                             'marker-end="url(#a)"/>')
    parts += [said(100, 228, "tensor parallel 2: each layer’s matrices on two devices of a node"),
              said(640, 28, "Inside a stage", bold=True)]
    for row, (title, labels) in enumerate(INSIDE):
        y = 56 + 62 * row
        parts.append(said(640, y, title))
        parts += [box(640 + 95 * n, y + 8, 95, 24, COLOURS[n], label, 0.5)
                  for n, label in enumerate(labels)]
    parts.append(said(20, 268, "A step of the pipeline: 4 micro-batches, 1F1B (forward light, "
                      "backward dark, bubble white)", bold=True))
    at = ends()
    unit = 900 / max(at.values())
    for stage in range(STAGES):
        parts += [said(20, 300 + 28 * stage, f"stage {stage}"),
                  box(80, 284 + 28 * stage, 900, 24, "#fff")]
    for (kind, n, stage), end in at.items():
        length = 1 if kind == "F" else 2
        parts.append(box(80 + unit * (end - length), 284 + 28 * stage, unit * length, 24,
                         COLOURS[stage], f"{kind}{n}", 0.35 if kind == "F" else 0.85))
    return "\n".join([*parts, said(80, 415, "time →"), "</svg>", ""])


# ---------------------------------------------------------------- schedules


SHOWN = (("gpipe", 1), ("1f1b", 1), ("zb1p", 1), ("interleaved", 2), ("zb-v", 2))
"""Schedules of the picture, with their chunks a stage."""
MANY = 8
"""Micro-batches of the picture."""
FORWARD, BACKWARD, INPUTS, WEIGHTS = range(4)
SECONDS = {FORWARD: 2, BACKWARD: 4, INPUTS: 2, WEIGHTS: 2}
"""Of a stage; a chunk takes its share."""


def codes(name: str, chunks: int) -> list[list[int]]:
    """Passes of each stage, by NEST's own rows; those of closed forms are written here."""
    from nest.schedules.registry import SCHEDULES

    entry: Any = SCHEDULES[name]
    if name == "gpipe":
        return [[FORWARD] * MANY + [BACKWARD] * MANY for _ in range(STAGES)]
    if name == "1f1b":
        return [[FORWARD if kind == "F" else BACKWARD for kind, _ in order(stage, MANY)]
                for stage in range(STAGES)]
    made = entry.order(STAGES, MANY, chunks)
    return [[*made.codes[made.rows[s]:made.rows[s + 1]]] for s in range(STAGES)]


def passes(name: str, chunks: int) -> Iterator[tuple[int, int, int, int, float, float]]:
    """Stage, chunk, kind, micro-batch, start and length of each pass."""
    from nest.schedules.passes import PASSES
    from nest.schedules.registry import position

    rows = codes(name, chunks)
    last = STAGES * chunks - 1
    counts: Counter[tuple[int, int, int]] = Counter()
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0] * STAGES
    while any(rows):
        for stage, row in enumerate(rows):
            if not row:
                continue
            chunk, kind = divmod(int(row[0]), PASSES)
            at = position(name, STAGES, stage, chunk, chunks)
            n = counts[stage, chunk, kind]
            if kind == FORWARD:
                needs = ("F", at - 1, n) if at else None
            elif kind == WEIGHTS:
                needs = ("B", at, n)
            else:
                needs = ("B", at + 1, n) if at < last else ("F", at, n)
            if needs is None or needs in done:
                row.pop(0)
                counts[stage, chunk, kind] += 1
                length = SECONDS[kind] / chunks
                start = max(free[stage], done[needs] if needs else 0.0)
                free[stage] = start + length
                if kind != WEIGHTS:
                    done["F" if kind == FORWARD else "B", at, n] = start + length
                yield stage, chunk, kind, n, start, length


def schedules_picture() -> str:
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1060 {len(SHOWN) * 118 + 34}" '
             'font-family="sans-serif" font-size="10" fill="#111">',
             "<title>Five schedules of a pipeline</title>",
             f'<rect width="1060" height="{len(SHOWN) * 118 + 34}" fill="#fff"/>']
    drawn = {name: [*passes(name, chunks)] for name, chunks in SHOWN}
    unit = 940 / max(start + length for rows in drawn.values() for *_, start, length in rows)
    for place, (name, chunks) in enumerate(SHOWN):
        y, end = 24 + 118 * place, max(start + length for *_, start, length in drawn[name])
        words = "" if chunks == 1 else f", {chunks} chunks a stage"
        parts.append(said(20, y - 6, f"{name}{words}: {end:g}", bold=True))
        parts += [said(20, y + 15 + 22 * stage, f"stage {stage}") for stage in range(STAGES)]
        parts += [box(80, y + 22 * stage, round(unit * end, 1), 20, "#fff")
                  for stage in range(STAGES)]
        for stage, chunk, kind, n, start, length in drawn[name]:
            colour = {FORWARD: "#4477aa", WEIGHTS: "#228833"}.get(kind, "#ee6677")
            parts.append(box(round(80 + unit * start, 1), y + 22 * stage, round(unit * length, 1),
                             20, colour, f"{n}", 0.8 if chunk else 0.4))
    return "\n".join([*parts, said(80, 20 + 118 * len(SHOWN), "blue: forward; red: backward, or "
                      "its part for inputs; green: its part for weights; darker: the second chunk; "
                      "white: bubble; hand-overs take no time"), "</svg>", ""])


PICTURES = {"parallelism": picture, "schedules": schedules_picture}


if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (Path(__file__).parent / f"{file}.svg").write_text(draw(), encoding="utf-8")
