"""What a study wants: figures of an answer, and which of two is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nest.studies.questions import About, Outcome
from nest.studies.study import ObjectiveName, Train


class Objective(NamedTuple):
    """A figure, and its direction."""

    title: str
    most: bool
    """The more the better."""
    decimals: int = 3
    """Digits in tables."""


OBJECTIVES: Mapping[ObjectiveName, Objective] = {
    "tokens_per_s": Objective("tokens/s", True),
    "tokens_per_money": Objective("tokens per {currency}", True),
    "tokens_per_joule": Objective("tokens per joule", True),
    "mfu": Objective("MFU", True),
    "step_time_s": Objective("step (s)", False),
    "devices": Objective("devices", False),
    "days": Objective("days", False),
    "money": Objective("{currency} in all", False),
}


class Figures(NamedTuple):
    """All figures of a plan; None: what they need is not given."""

    tokens_per_s: float
    step_time_s: float
    mfu: float
    devices: int
    money_per_hour: float | None
    watts: float | None
    tokens_per_money: float | None
    tokens_per_joule: float | None
    days: float | None
    money: float | None
    days_low: float | None
    """In 9 of 10 cases, by the expected range of the step time; None: it has none."""
    days_high: float | None
    money_low: float | None
    money_high: float | None
    in_time: bool
    """The training ends in the days it may take; True without such."""


def figures(answer: Outcome, about: About, train: Train | None) -> Figures:
    """Figures of an answer that has a plan.

    Parameters
    ----------
    about : devices, and money for an hour and power of the cluster; None or 0: not known.
    train : the whole training.

    Raises
    ------
    ValueError : the answer has no plan.
    """
    speed, step, mfu = answer.tokens_per_s, answer.step_time_s, answer.mfu
    if not speed or step is None or mfu is None:
        raise ValueError(f"got an answer {answer.status} without a plan")
    hour, watts = about.hour, about.watts
    days = None if train is None else train.tokens / speed / train.productive / 86400.0
    spent = [None if days is None or found is None else days * found / step
             for found in (step, answer.low_s, answer.high_s)]
    paid = [hour * 24.0 * one if hour and one is not None else None for one in spent]
    return Figures(
        tokens_per_s=speed, step_time_s=step, mfu=mfu, devices=about.devices,
        money_per_hour=hour, watts=watts,
        tokens_per_money=speed * 3600.0 / hour if hour else None,
        tokens_per_joule=speed / watts if watts else None, days=days,
        money=paid[0], days_low=spent[1], days_high=spent[2], money_low=paid[1],
        money_high=paid[2],
        in_time=train is None or train.days is None or days is None or days <= train.days)
