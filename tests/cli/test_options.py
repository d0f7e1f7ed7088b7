"""Records of options: each option is described once, and commands take its record whole."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from nest.cli import options
from nest.cli.evaluate import DegreeOptions
from nest.cli.main import app
from nest.cli.options import ProblemOptions, SpaceOptions, given, spelled, spread
from nest.cli.plan import BatchesOptions, PlanSpaceOptions
from nest.cli.present import PlanOutput
from nest.cli.read import ScriptOptions


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Two options."""

    first: Annotated[int | None, options.number("The first.")] = None
    other: Annotated[bool, options.text("The other.", None, "--other")] = False


def shown(command: str) -> dict[str, Any]:
    """Options of a command by the names of their fields: spelling, metavar, default and help."""
    return {one.name: (one.opts, one.secondary_opts, one.metavar, one.default, one.help)
            for one in get_command(app).commands[command].params if hasattr(one, "help")}


@pytest.mark.parametrize(("command", "records"), [
    ("plan", (BatchesOptions, PlanSpaceOptions, PlanOutput)),
    ("evaluate", (ProblemOptions, DegreeOptions, PlanOutput)),
    ("compare", (ProblemOptions, SpaceOptions)),
    ("read", (ScriptOptions,)), ("improve", (ScriptOptions,)),
])
def test_a_command_has_all_options_of_its_records_in_their_order(command, records):
    found = list(shown(command))
    for record in records:
        names = [one.name for one in fields(record)]
        start = found.index(names[0])
        assert found[start:start + len(names)] == names


def test_an_option_is_the_same_in_all_commands():
    plan, evaluate, compare = map(shown, ("plan", "evaluate", "compare"))
    shared = {one.name for one in fields(ProblemOptions)} - {"global_batch"}
    assert len(shared) == 25
    assert {name: plan[name] for name in shared} == {name: evaluate[name] for name in shared}
    shared |= {one.name for one in fields(SpaceOptions)}
    assert {name: plan[name] for name in shared} == {name: compare[name] for name in shared}
    assert plan["global_batch"] != evaluate["global_batch"]


def test_a_command_gets_records_and_single_options():
    def command(word: str, *, pair: PairOptions, last: int = 3) -> tuple[str, PairOptions, int]:
        """Both."""
        return word, pair, last

    command.__annotations__ |= {"pair": PairOptions}
    found = spread(command)
    assert list(found.__signature__.parameters) == ["word", "first", "other", "last"]
    assert found.__doc__ == "Both."
    program = typer.Typer()
    program.command()(found)
    assert program(["w", "--first", "2", "--last", "4"], standalone_mode=False) == (
        "w", PairOptions(first=2), 4)


def test_two_options_of_one_name_are_a_defect():
    def command(*, pair: PairOptions, first: int = 1) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'first'"):
        spread(command)


def test_what_a_command_line_gives_is_told_from_defaults():
    """0 and --no-sp are given; an empty list of a repeated option is not."""
    assert given(DegreeOptions(zero=0, sp=False)) == {"zero": 0, "sp": False}
    assert given(ProblemOptions(without=[], as_type="llama")) == {"as_type": "llama"}
    assert spelled(["as_type", "global_batch"]) == "--as, --global-batch"
