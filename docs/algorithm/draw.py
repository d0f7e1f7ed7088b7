"""Draw the pictures of docs/algorithm.md and docs/proofs.md: ``python docs/algorithm/draw.py``.

Pipelines are run as events: 1F1B, a forward and a backward of a stage in turn once it has as many
micro-batches in flight as there are stages from it to the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FORWARD, BACKWARD, REDUCTION, PATH = "#a6cee3", "#fdc98a", "#d9d9d9", "#b2182b"
INK, FAINT, MARK = "#222222", "#bbbbbb", "#2166ac"


class Stage(NamedTuple):
    """Seconds of a micro-batch, and of what follows the last backward."""

    forward: float
    backward: float
    finish: float = 0.0


class Pass(NamedTuple):
    """A forward (way 0) or backward (way 1) of a micro-batch on a stage."""

    stage: int
    way: int
    batch: int


Times = dict[Pass, tuple[float, float]]


def order(stage: int, stages: int, m: int) -> list[Pass]:
    """Passes of a stage in the order of 1F1B."""
    warm = min(stages - stage, m)
    found = [Pass(stage, 0, n) for n in range(warm)]
    for n in range(m):
        found.append(Pass(stage, 1, n))
        if warm + n < m:
            found.append(Pass(stage, 0, warm + n))
    return found


def needs(x: Pass, stages: int) -> Pass | None:
    """The pass whose result ``x`` takes: of the stage in front, behind, or its own forward."""
    if x.way == 0:
        return Pass(x.stage - 1, 0, x.batch) if x.stage else None
    last = x.stage == stages - 1
    return Pass(x.stage, 0, x.batch) if last else Pass(x.stage + 1, 1, x.batch)


def simulate(pipeline: list[Stage], hop: float, m: int) -> tuple[Times, list[Pass]]:
    """Start and end of each pass, and a longest path; ``hop`` is a hand-over one way."""
    stages = len(pipeline)
    queues = [order(s, stages, m) for s in range(stages)]
    times: Times = {}
    cause: dict[Pass, Pass | None] = {}
    at = [0] * stages
    while any(at[s] < len(queues[s]) for s in range(stages)):
        for s in range(stages):
            while at[s] < len(queues[s]):
                x = queues[s][at[s]]
                before, needed = queues[s][at[s] - 1] if at[s] else None, needs(x, stages)
                if needed is not None and needed not in times:
                    break
                free = times[before][1] if before else 0.0
                way = hop if needed and needed.stage != s else 0.0
                there = times[needed][1] + way if needed else 0.0
                start = max(free, there)
                times[x] = start, start + pipeline[s][x.way]
                cause[x] = before if free >= there else needed
                at[s] += 1
    now: Pass | None = Pass(0, 1, m - 1)
    path = []
    while now is not None:
        path.append(now)
        now = cause[now]
    return times, path[::-1]


# ---------------------------------------------------------------- SVG


def text(x: float, y: float, words: str, size: float = 13, anchor: str = "start",
         colour: str = INK, weight: str = "normal") -> str:
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{colour}" font-weight="{weight}">{words}</text>')


def box(x: float, y: float, width: float, height: float, fill: str, edge: str = INK,
        line: float = 1, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
            f'stroke="{edge}" stroke-width="{line:g}"{dashes}/>')


def line(points: list[tuple[float, float]], colour: str = INK, width: float = 1,
         dash: str = "", arrow: bool = False) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    more = f' stroke-dasharray="{dash}"' if dash else ""
    more += ' marker-end="url(#arrow)"' if arrow else ""
    return (f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{more}/>')


def dot(x: float, y: float, radius: float = 5, fill: str = MARK) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}"/>'


def picture(width: float, height: float, title: str, parts: list[str]) -> str:
    arrow = ('<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
             'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" '
             f'fill="{INK}"/></marker></defs>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{title}</title>", arrow, box(0, 0, width, height, "#ffffff", "none"),
        *parts, "</svg>", ""])


def bars(times: Times, path: list[Pass], x: float, y: float, second: float, row: float,
         gap: float) -> list[str]:
    """Passes as bars, a row a stage, the longest path through them."""
    parts = []
    for one, (start, end) in sorted(times.items()):
        top, width = y + one.stage * (row + gap), (end - start) * second
        parts.append(box(x + start * second, top, width, row, (FORWARD, BACKWARD)[one.way],
                         line=0.8))
        if width > 9:
            parts.append(text(x + start * second + width / 2, top + row / 2 + 3, str(one.batch + 1),
                              min(13, row * 0.6), "middle"))
    points = []
    for one in path:
        middle = y + one.stage * (row + gap) + row - 4
        points += [(x + times[one][0] * second, middle), (x + times[one][1] * second, middle)]
    return [*parts, line(points, PATH, 2.5)]


# ---------------------------------------------------------------- pictures

EXAMPLE = [Stage(2.5, 5.0), Stage(2.0, 4.0, 3.0)]
"""The best plan of the worked example; hand-overs take 0.5 s a way, four micro-batches."""


def timeline() -> str:
    """The step of the worked example."""
    times, path = simulate(EXAMPLE, 0.5, 4)
    x, y, second, row, gap = 150, 66, 21.5, 34, 22
    parts = [text(16, 26, "The best plan of the example: 36.5 s a step", 15, weight="bold")]
    for s, name in enumerate(("a, b on devices 0, 1", "c on devices 2, 3")):
        top = y + s * (row + gap)
        parts += [text(16, top + 15, f"stage {s}", weight="bold"), text(16, top + 30, name, 12)]
    parts += bars(times, path, x, y, second, row, gap)
    end = times[Pass(1, 1, 3)][1]
    top = y + row + gap
    parts += [box(x + end * second, top, 3 * second, row, REDUCTION, line=0.8),
              text(x + (end + 1.5) * second, top + row / 2 + 4, "reduce", 11, "middle")]
    base = y + 2 * row + gap + 14
    parts.append(line([(x, base), (x + 37 * second, base)], INK))
    for now in range(0, 37, 5):
        parts += [line([(x + now * second, base), (x + now * second, base + 5)]),
                  text(x + now * second, base + 19, str(now), 12, "middle")]
    parts.append(text(x + 37 * second, base + 19, "s", 12))
    spans = ((0.0, 9.5, "first trip"), (9.5, 24.5, "micro-batches between"),
             (24.5, 31.5, "last trip"), (31.5, 36.5, "last backward"))
    for start, stop, words in spans:
        a, b = x + start * second, x + stop * second
        parts += [line([(a, y - 8), (a, y - 14), (b, y - 14), (b, y - 8)], MARK, 1.5),
                  text((a + b) / 2, y - 19, words, 12, "middle", MARK)]
    key = base + 42
    for n, (colour, words) in enumerate((
            (FORWARD, "forward of a micro-batch"), (BACKWARD, "backward"),
            (REDUCTION, "reduction of gradients"))):
        left = x + (0, 188, 280)[n]
        parts += [box(left, key - 11, 16, 13, colour, line=0.8), text(left + 22, key, words, 12)]
    parts += [line([(x + 465, key - 5), (x + 485, key - 5)], PATH, 2.5),
              text(x + 492, key, "a longest path", 12)]
    return picture(980, 240, "A step of two stages and four micro-batches", parts)


def grid(x: float, y: float, unit: float, small: bool = False) -> list[str]:
    """Layers (rows) and devices (columns) of the example."""
    parts, size = [], 10 if small else 13
    for k in range(5):
        parts.append(line([(x + k * unit, y), (x + k * unit, y + 3 * unit)], FAINT, 0.8))
    for i in range(4):
        parts.append(line([(x, y + i * unit), (x + 4 * unit, y + i * unit)], FAINT, 0.8))
    for k in range(4):
        parts.append(text(x + (k + 0.5) * unit, y - 6, str(k), size, "middle"))
    for i, name in enumerate("abc"):
        parts.append(text(x - 9, y + (i + 0.5) * unit + 4, name, size, "end"))
    return parts


def cells() -> str:
    """A plan as a chain of rectangles, the labels of a cell, and the ways in front of it."""
    x, y, unit = 84, 92, 58
    parts = [text(16, 26, "A plan is a chain of rectangles that touch at cells", 15, weight="bold"),
             text(x + 2 * unit, y - 26, "devices", 12, "middle"),
             text(16, y + 1.5 * unit + 4, "layers", 12),
             *grid(x, y, unit)]
    for i, k, height, width, colour, words, more in (
            (0, 0, 2, 2, "#dbe9f6", "stage 0", "tp 2"),
            (2, 2, 1, 2, "#fbe3c4", "stage 1", "dp_in 2")):
        parts += [box(x + k * unit, y + i * unit, width * unit, height * unit, colour, line=1.3),
                  text(x + (k + width / 2) * unit, y + (i + height / 2) * unit - 2, words, 13,
                       "middle", weight="bold"),
                  text(x + (k + width / 2) * unit, y + (i + height / 2) * unit + 15, more, 12,
                       "middle")]
    parts += [dot(x, y), dot(x + 2 * unit, y + 2 * unit), dot(x + 4 * unit, y + 3 * unit),
              text(x - 10, y - 26, "cell (0, 0)", 12, "end"),
              line([(x - 30, y - 20), (x - 5, y - 5)], arrow=True),
              text(x, y + 3 * unit + 24, "Labels of cell (0, 0) are whole plans.", 12)]
    at = x + 4 * unit + 40
    parts += [line([(at - 5, y + unit), (x + 2 * unit + 9, y + 2 * unit - 3)], arrow=True),
              text(at, y - 26, "labels of cell (2, 2), one stage", 13, weight="bold")]
    rows = (("option", "rest", "after", "done", "idle"), ("dp_in 2", "24", "6", "27", "9"),
            ("tp 2", "30", "7.5", "30", "7.5"), ("one device", "48", "12", "48", "12"))
    for n, row in enumerate(rows):
        height = y - 2 + 24 * n
        for column, word in enumerate(row):
            place = at if column == 0 else at + 76 + 44 * column
            parts.append(text(place, height, word, 13, "start" if column == 0 else "end",
                              weight="bold" if n == 0 else "normal"))
    parts += [line([(at - 4, y + 65), (at + 256, y + 65)], PATH, 1.5),
              text(at, y + 92, "dominated: no figure is below that of", 12, colour=PATH),
              text(at, y + 107, "another label of the cell", 12, colour=PATH)]
    at = 672
    parts.append(text(at, y - 26, "ways in front of cell (2, 2)", 13, weight="bold"))
    ways = (("dp_in 2 or tp 2", ((0, 0, 2, 2),)), ("two stages", ((0, 0, 1, 1), (1, 1, 1, 1))))
    for n, (words, stages) in enumerate(ways):
        left, small = at + 18 + 150 * n, 26
        parts += grid(left, y + 6, small, True)
        for i, k, height, width in stages:
            parts.append(box(left + k * small, y + 6 + i * small, width * small, height * small,
                             "#dbe9f6", line=1.2))
        parts += [dot(left, y + 6, 3.5), dot(left + 2 * small, y + 6 + 2 * small, 3.5),
                  text(left + 2 * small, y + 6 + 3 * small + 18, words, 12, "middle")]
    parts += [text(at, y + 134, "A bound of the cell is the least", 12),
              text(at, y + 149, "that one of them adds to a step.", 12)]
    return picture(980, 310, "Cells, labels and stages of the worked example", parts)


BOUNDS = (5.1, 5.3, 5.4, 5.9, 6.0, 6.2, 6.5, 6.6, 6.9, 7.3, 7.4, 7.7, 8.0, 8.2, 8.4, 8.7)
"""Made up: lower bounds of outer choices."""
LIMITS = ((0, 2, 7.1), (2, 6, 6.8), (6, 16, 6.4))
"""Made up: first and last outer choice of a round, and its limit."""
UNPROVEN = (1, 4)


def rounds() -> str:
    """Limits and bounds of outer choices over the rounds of the search."""
    x, y, wide, tall, least = 74, 62, 34, 44, 4.4
    top = 8.9

    def height(value: float) -> float:
        return y + (top - value) * tall

    base = height(least)
    parts = [text(16, 26, "Rounds over the outer choices (schematic)", 15, weight="bold"),
             line([(x, y), (x, base), (x + wide * len(BOUNDS) + 10, base)]),
             text(x - 8, y + 4, "seconds", 12, "end"),
             text(x + wide * len(BOUNDS) / 2, base + 42,
                  "outer choices, those most like a known plan or of the lowest bound first",
                  12, "middle")]
    for n, bound in enumerate(BOUNDS):
        limit = next(value for first, last, value in LIMITS if first <= n < last)
        passed = bound >= limit
        left = x + 6 + wide * n
        parts.append(box(left, height(bound), wide - 10, base - height(bound),
                         "#ffffff" if passed else FORWARD if n not in UNPROVEN else BACKWARD,
                         FAINT if passed else INK, 1, "4 3" if passed else ""))
    for first, last, value in LIMITS:
        a, b = x + wide * first, x + wide * last
        parts.append(line([(a, height(value)), (b, height(value))], PATH, 2.5))
        if last < len(BOUNDS):
            nxt = next(v for f, _, v in LIMITS if f == last)
            parts.append(line([(b, height(value)), (b, height(nxt))], PATH, 2.5, "3 3"))
    parts.append(text(x + 4, height(LIMITS[0][2]) - 8, "limit: the best step known", 12,
                      colour=PATH))
    for first, last in ((0, 2), (2, 6), (6, 14)):
        a, b = x + wide * first + 6, x + wide * last - 4
        parts += [line([(a, base + 6), (a, base + 11), (b, base + 11), (b, base + 6)], MARK, 1.4),
                  text((a + b) / 2, base + 25, f"round of {last - first}", 11, "middle", MARK)]
    at, left = y + 6, x + wide * len(BOUNDS) + 34
    key = ((FORWARD, "", "solved exactly in the first pass:",
            "no cell dropped a label for its rank"),
           (BACKWARD, "", "unproven after the first pass:", "solved again without a cap on labels"),
           ("#ffffff", "4 3", "passed over: its lower bound", "is not below the limit"))
    for n, (colour, dash, one, two) in enumerate(key):
        place = at + 50 * n
        parts += [box(left, place - 10, 18, 26, colour, FAINT if dash else INK, 1, dash),
                  text(left + 27, place, one, 12), text(left + 27, place + 16, two, 12)]
    parts += [text(left, at + 172, "The limit changes between rounds only,", 12),
              text(left, at + 188, "so threads do not change the plan.", 12)]
    return picture(930, 320, "Rounds of the search", parts)


PANELS = (
    ("One micro-batch at a time: the first stage is the slowest",
     [Stage(2, 4), Stage(1, 2), Stage(1, 2)], 0.25),
    ("Round trips through stages behind: the links are slow",
     [Stage(1, 2), Stage(1, 2), Stage(1, 2)], 1.0),
    ("On a stage behind: the last stage is the slowest",
     [Stage(1, 2), Stage(1, 2), Stage(2, 4)], 0.25),
    ("Leaving early: back with one left, then backwards in a row",
     [Stage(1, 4), Stage(3, 2), Stage(2, 1)], 0.25),
)


def paths() -> str:
    """Longest paths of four pipelines of three stages and six micro-batches."""
    parts, second = [], 10.2
    for n, (title, pipeline, hop) in enumerate(PANELS):
        x, y = 46 + 490 * (n % 2), 42 + 140 * (n // 2)
        times, path = simulate(pipeline, hop, 6)
        parts.append(text(x - 30, y - 14, title, 13, weight="bold"))
        parts += [text(x - 20, y + 15 + 30 * s, f"{s}", 11) for s in range(3)]
        parts += bars(times, path, x, y, second, 22, 8)
    return picture(980, 290, "Longest paths through a step of 1F1B", parts)


PICTURES = {"timeline": timeline, "cells": cells, "rounds": rounds, "paths": paths}


def main() -> None:
    for name, draw in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
