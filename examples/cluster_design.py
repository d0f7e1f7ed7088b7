"""An outer search over clusters with Optuna: pip install 'nest-planner[optuna]'.

    python examples/cluster_design.py --trials 30

Which network and how many devices train the most tokens per unit of money? Optuna proposes
clusters, NEST gives the fastest plan on each. Prices are made up: replace them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import optuna

import nest

DEVICE, ADAPTER = 2.0, 0.05
"""Money per device and hour, and for each GB/s of its network adapter."""


def cluster(trial: optuna.Trial) -> nest.Cluster:
    """The cluster that a trial proposes: devices, scale-up domain, bandwidth, oversubscription."""
    domain = trial.suggest_categorical("domain", [8, 16, 32])
    groups = trial.suggest_int("groups", 2, 8)
    bandwidth = trial.suggest_float("bandwidth_gb_s", 12.5, 100.0, log=True)
    return nest.load_cluster({
        "name": "proposed", "device": "h100-sxm", "levels": [
            {"name": "node", "size": domain, "bandwidth": "450 GB/s", "latency": "3.4 us"},
            {"name": "leaf", "size": groups, "bandwidth": bandwidth * 1e9, "latency": "14 us"}]})


def money_per_hour(found: nest.Cluster) -> float:
    """Price of a cluster."""
    adapter = (found.levels[1].bandwidth or 0.0) / 1e9
    return found.size * (DEVICE + ADAPTER * adapter)


def objective(model: nest.Model, job: nest.Job,
              plan: Callable[..., nest.Plan] = nest.plan) -> Callable[[optuna.Trial], float]:
    """Tokens per unit of money of a trial; trials on which nothing fits are pruned."""

    def value(trial: optuna.Trial) -> float:
        proposed = cluster(trial)
        try:
            found = plan(model, proposed, job)
        except (nest.InfeasibleError, nest.LimitError) as error:
            raise optuna.TrialPruned(str(error)) from None
        trial.set_user_attr("tokens_per_s", found.tokens_per_s)
        trial.set_user_attr("devices", proposed.size)
        return found.tokens_per_s * 3600.0 / money_per_hour(proposed)

    return value


def search(model: nest.Model, job: nest.Job, trials: int, seed: int = 0,
           plan: Callable[..., Any] = nest.plan) -> optuna.Study:
    """Optuna's study after so many trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize",
                                sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective(model, job, plan), n_trials=trials)
    return study


def main() -> None:
    """Search, and print the best cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--model", default="llama3-8b")
    given = parser.parse_args()
    found = search(nest.load_model(given.model), nest.Job(global_batch=512, seq_len=4096),
                   given.trials)
    best = found.best_trial
    print(f"best of {len(found.trials)}: {best.value / 1e6:.1f} M tokens per unit of money, "
          f"{best.user_attrs['tokens_per_s'] / 1e3:.0f} k tokens/s on "
          f"{best.user_attrs['devices']} devices")
    for name, value in best.params.items():
        print(f"  {name}: {value:.3g}")


if __name__ == "__main__":
    main()
