"""Replay sweeps that others ran: how good the best of the first k runs is.

    python bench/replay.py RAN.csv OOM.csv [--json] [--by learning|price|random|grid] [--others]

A set is one source_group and, where notes name one, kernel, with 5 runs or more. In each set runs
are chosen one after another among its configurations, those that ran out of memory too, and the
best measured step so far is compared with the best of the set. `--others`: with what the other sets
of the same code taught. `--rest`: instead, after three runs drawn by seed, the rest of a set is
priced.

price: in the order of prices, what fits first. random: in an order drawn by seed. grid: NeMo's
AutoConfigurator (tp, pp, micro-batch from small to large as its grid lists them, the first that
fits; NVIDIA/NeMo nemo/collections/llm/tools/auto_configurator).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

import numpy as np

from nest.measured import validation
from nest.measured.learning import Observation, Posterior, following, observe

RUNS = (1, 2, 3, 5, 8)
LEAST = 5
NEAR = 0.02
Choose = Callable[[list[Observation], list[Observation]], int]


def sets(paths: Sequence[str]) -> dict[tuple[str, str, str], list[Observation]]:
    """Observations by code, source_group and kernel."""
    found = defaultdict(list)
    for path in paths:
        runs = validation.read(path)
        for run, one in zip(runs, observe(runs), strict=True):
            found[run.framework, run.group, one.variant].append(one)
    return {key: own for key, own in sorted(found.items())
            if sum(one.verdict == "ran" for one in own) >= LEAST}


def by_learning(known: list[Observation], left: list[Observation]) -> int:
    return following(known, left, worth=0.0)[0].number


def by_price(known: list[Observation], left: list[Observation]) -> int:
    return min(range(len(left)), key=lambda n: (
        left[n].activations + left[n].states > left[n].limit, left[n].step_s))


def by_grid(known: list[Observation], left: list[Observation]) -> int:
    return min(range(len(left)), key=lambda n: (
        left[n].activations + left[n].states > left[n].limit,
        *(left[n].degrees[i] for i in (0, 1, 6))))


def by_random(known: list[Observation], left: list[Observation]) -> int:
    return Random(",".join(one.name for one in left)).randrange(len(left))


WAYS: dict[str, Choose] = {
    "learning": by_learning, "price": by_price, "grid": by_grid, "random": by_random}


def regrets(own: Sequence[Observation], others: Sequence[Observation], choose: Choose
            ) -> list[float]:
    """Best step after 1 to 8 runs over the best of all, less 1; infinite: nothing ran."""
    least = min(one.seconds for one in own if one.seconds is not None)
    known, left, best, found = list(others), list(own), np.inf, []
    for number, one in enumerate(left):  # what was measured is not known before
        left[number] = one.model_copy(update={"verdict": None, "seconds": None, "bytes": None})
    told = {id(blank): one for blank, one in zip(left, own, strict=True)}
    for _ in range(max(RUNS)):
        if left:
            ran = told[id(left.pop(choose(known, left)))]
            known.append(ran)
            best = min(best, ran.seconds or np.inf)
        found.append(best / least - 1.0)
    return found


def after(results: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
    table = {}
    for count in RUNS:
        reached = [each[count - 1] for each in results]
        ran = [each for each in reached if np.isfinite(each)]
        table[str(count)] = {
            "within_2_percent": sum(each <= NEAR for each in ran),
            "median": median(reached), "worst": max(ran, default=np.inf),
            "without_run": len(reached) - len(ran)}
    return table


def rest(own: Sequence[Observation], seed: int) -> tuple[float, float]:
    """Median error, and the share in range, of the rest of a set after three runs drawn."""
    ran = [one for one in own if one.seconds is not None]
    drawn = Random(seed).sample(range(len(ran)), 3)
    left = [one for n, one in enumerate(ran) if n not in drawn]
    at = Posterior([ran[n] for n in drawn]).forecast(left)
    seen = np.array([one.seconds for one in left])
    return (float(np.median(np.abs(at.seconds / seen - 1.0))),
            float(np.mean((at.low <= seen) & (seen <= at.high))))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("tables", nargs="+")
    asked.add_argument("--by", choices=WAYS, default="learning")
    asked.add_argument("--others", action="store_true")
    asked.add_argument("--rest", action="store_true")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    found = sets(given.tables)
    if given.rest:
        for (_, group, variant), own in found.items():
            told = [rest(own, seed) for seed in range(10)]
            print(f"{group:32} {variant:30} error {100 * np.mean([e for e, _ in told]):5.1f} %, "
                  f"in range {100 * np.mean([share for _, share in told]):3.0f} %")
        return
    results = {}
    for key, own in found.items():
        others = [one for other, rows in found.items() for one in rows
                  if given.others and other[0] == key[0] and other != key]
        results[key] = regrets(own, others, WAYS[given.by])
    table = after(list(results.values()))
    if given.json:
        print(json.dumps({"sets": len(results), "after": table}))
        return
    for (_, group, variant), reached in results.items():
        print(f"{group:32} {variant:30} " + " ".join(
            f"{100 * reached[count - 1]:6.1f}" for count in RUNS))
    for count, row in table.items():
        print(f"after {count}: within 2 % in {row['within_2_percent']} of {len(results)}, median "
              f"{100 * row['median']:.1f} %, worst {100 * row['worst']:.0f} %, nothing ran in "
              f"{row['without_run']}")


if __name__ == "__main__":
    main()
