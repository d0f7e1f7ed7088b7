"""Draws docs/site/parallelism.svg: python docs/site/draw.py."""

from __future__ import annotations

from pathlib import Path

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


def order(stage: int) -> list[tuple[str, int]]:
    """Passes of a stage under 1F1B: forward (F) or backward (B), and the micro-batch."""
    begun = min(MICRO_BATCHES, STAGES - stage)
    rows = [("F", n) for n in range(begun)]
    for done in range(MICRO_BATCHES):
        rows.append(("B", done))
        if begun < MICRO_BATCHES:
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


if __name__ == "__main__":
    (Path(__file__).parent / "parallelism.svg").write_text(picture(), encoding="utf-8")
