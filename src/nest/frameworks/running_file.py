"""A configuration file of a job that runs today, and the same with a better plan."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

from nest.errors import InputError, UnsupportedError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.frameworks.capture.stand_in import slurm
from nest.frameworks.deepspeed.read import ALIASES, known_arguments
from nest.frameworks.hosts import Placed
from nest.frameworks.improvement import (
    UNSET,
    Change,
    Now,
    RunningJob,
    WrittenFiles,
    parts,
    placed,
    shown_words,
    unsearched,
    with_overlap,
)
from nest.frameworks.launches import launched
from nest.frameworks.megatron import edit_script
from nest.frameworks.megatron.arguments import Flags, applied
from nest.frameworks.megatron.script import SHOWING, Reading
from nest.frameworks.reader import Opened, changed, read_file
from nest.frameworks.registry import FORMATS, TARGETS, BoundInputs, Format
from nest.frameworks.settings import KnownArguments, Plain, Words, arguments_of
from nest.frameworks.target import refuse
from nest.frameworks.text.edit_python import Code
from nest.frameworks.text.shell import ShellScript
from nest.inputs.cluster import Cluster
from nest.inputs.job import Stack
from nest.inputs.loading import load_stack
from nest.inputs.space import SearchSpace
from nest.model.legality import divisors

DEGREES = ("pp", "tp", "cp", "outer_dp", "dp_in")
"""Degrees whose product is the devices that a plan uses."""
LONGEST = 2**18
"""Characters of a file that is changed."""


class _Texts(NamedTuple):
    """New texts."""

    body: str
    """Of the file."""
    script: str
    """Of the script that hands it to the program; as it was, if none."""


@dataclass(frozen=True, kw_only=True)
class RunningFile(RunningJob):
    """A configuration file and how it is to be read."""

    opened: Opened
    reading: Reading
    format: Format

    @classmethod
    def read(cls, opened: Opened, cluster: Cluster) -> Self:
        """Read a file; see :func:`nest.improve`.

        Raises
        ------
        InputError : as :func:`nest.read`, or a file that is too long.
        """
        where = opened.source.where
        if len(opened.source.text) > LONGEST:
            raise InputError(f"{where}: got {len(opened.source.text)} characters; allowed: "
                             f"{LONGEST}")
        if opened.target not in FORMATS:
            raise InputError(f"{where}: NEST writes no files of {opened.target}; "
                             f"allowed: files of {', '.join(FORMATS)} (`nest read` writes the "
                             "model and the job, which `nest plan` takes)")
        found, form, script = read_file(opened), FORMATS[opened.target], opened.script
        listed = ("ranks keep the order that a list beside the script gives them",)
        where, line = opened.begun.place(where if script is None else script.where, found.line)
        return cls(
            target=opened.target, where=where, line=line, model=found.model, job=found.job,
            cluster=cluster,
            notes=found.notes + (listed if opened.source.places is not None else ()),
            keeps=tuple(form.overlaps), opened=opened, reading=found, format=form)

    def now(self) -> Now:
        """What the file takes."""
        try:
            return self.priced(self.reading.configuration)
        except InputError as error:
            return Now(None, tuple(str(error).splitlines()))

    # ------------------------------------------------------------ the search

    def spaces(
        self, before: Plan | None, space: SearchSpace | None, keep: tuple[str, ...]
    ) -> Iterator[tuple[Stack, SearchSpace]]:
        """The space asked for, as far as the file says it; ranks go stage by stage."""
        own = self.job.stack
        stack = with_overlap(own, load_stack(own.name.removesuffix(" (changed)")),
                             self.format.overlaps, keep)
        ways = [{name: 1} for name in ("pp", "outer_dp", *(["dp_in"] * self.format.mapped))]
        for one in self.format.stacks(stack):
            bounds = self.format.bounds(BoundInputs(
                self.model, self.job.replace(stack=one), self.reading.configuration,
                self._arguments))
            for each in parts(parts(unsearched(before, space), bounds), ways):
                yield one, each

    @property
    def _arguments(self) -> frozenset[str] | None:
        """Arguments of the launch that may change: all of Megatron-DeepSpeed's, of another
        program those that it has."""
        given = self._given
        if "num-layers" in given:
            return None
        return frozenset(ALIASES.get(name, name) for name in given)

    @property
    def _given(self) -> dict[str, Words]:
        """Arguments of the launch by name."""
        if self.format.words is None:
            return {}
        return arguments_of(self.opened.source.words, known_arguments())[0]

    def lacks(self, plan: Plan) -> tuple[str, ...]:
        """Why the file cannot say a plan, a sentence each."""
        target = TARGETS[self.target]
        try:
            refuse(target, plan, self.target)
        except UnsupportedError as error:
            return error.problems
        order: Placed = tuple(rank.device for rank in target.order(plan))
        if len(order) != self.cluster.size:
            return (f"it leaves devices idle: {len(order)} of {self.cluster.size} are used",)
        own = self.opened.source.places
        if order != (own if own is not None else tuple(sorted(order))):
            return ("it needs ranks in another order than the launch has them",)
        return ()

    def narrower(self, space: SearchSpace, plan: Plan) -> Iterator[SearchSpace]:
        """Parts of a space with one more degree fixed, where the best plan leaves devices idle."""
        size = self.cluster.size
        if plan.parallelism.devices_used == size:
            return
        fixed = {name: given.smallest for name in DEGREES
                 if (given := getattr(space, name)) is not None and len(given) == 1}
        left, rest = divmod(size, math.prod(fixed.values()))
        free = [name for name in DEGREES if name not in fixed]
        if not free or rest:
            return
        for value in divisors(left) if len(free) > 1 else (left,):
            if space.allows(free[0], value):
                yield space.replace(**{free[0]: value})

    # ------------------------------------------------------------ the new file

    def written(self, before: Plan | None, plan: Plan) -> WrittenFiles:
        """The file with other settings; its script where that has to change, too."""
        there = {**self.format.read(self.opened.source), **self._behind}
        new = self.format.said(plan)
        old = {name: there[name] for name in new if name in there} if before is None else (
            self.format.said(before))
        change = {name: value for name, value in new.items()
                  if name not in old or not _same(old[name], value)}
        taken = [name for name in old if name not in new]
        reasons: tuple[str, ...] = ()
        # First what differs from the plan before, then all that the plan decides.
        for given in (change, new):
            given = {name: value for name, value in given.items()
                     if name not in there or not _same(there[name], value)}
            out = [name for name in self._replaced(given, taken) if name in there]
            wrong = tuple(self._given_elsewhere({*given, *out}))
            if not wrong:
                try:
                    texts, arguments = self._texts(before, plan, given, out)
                    wrong = tuple(self._wrong(plan, texts))
                except ValueError as error:
                    wrong = (f"{self.opened.source.where}: {error}",)
            reasons = reasons or wrong
            if not wrong:
                lines = [Change(name=name, before=self._shown(there, name),
                                after=self._shown(given, name)) for name in (*given, *out)]
                placed_lines, notes = placed(arguments, self.opened.begun.capture)
                return WrittenFiles(self._files(texts), (*lines, *placed_lines),
                               notes=(*notes, *self._needs(before, plan)))
        return WrittenFiles(refused=reasons)

    def _shown(self, given: Mapping[str, Any], name: str) -> str:
        return self.format.shown(given[name]) if name in given else ""

    def _replaced(self, given: Iterable[str], taken: Iterable[str]) -> list[str]:
        """What is taken out, with what says the same as something that changes."""
        more = [name for one in (*given, *taken) for name in self.format.together.get(one, ())]
        return [*dict.fromkeys((*taken, *more))]

    @property
    def _behind(self) -> Plain:
        """Settings that the command line gives, which come before the file's."""
        own = self.opened.source
        return self.format.overrides(own._replace(asked=own.asked._replace(settings={})))

    def _given_elsewhere(self, names: set[str]) -> Iterator[str]:
        """Settings that the user gives, which come before the file's and the command line's."""
        for name in self.format.overrides(self.opened.source._replace(words=())):
            if name in names:
                yield (f"{name}: it is given besides the file, and comes before it; leave it out "
                       "there, and give it in the file")

    def _on_the_line(self, given: Plain, taken: list[str]) -> Flags:
        """What changes of the settings of the command line: numbers and words in place; the others
        are taken out there, and written in the file."""
        names = self.format.spelled(self.opened.source)
        new = {names[name]: (str(value),) for name, value in given.items()
               if name in names and type(value) in (int, float, str)}
        return Flags(tuple(names[name] for name in (*given, *taken)
                           if name in names and names[name] not in new), new)

    def _texts(
        self, before: Plan | None, plan: Plan, given: Plain, taken: list[str]
    ) -> tuple[_Texts, list[Change]]:
        """New texts, and the difference in arguments of the launch.

        Raises
        ------
        ValueError : the file has no place for a setting.
        """
        opened = self.opened
        there, line = self.format.read(opened.source), self._on_the_line(given, taken)
        spelled = self.format.spelled(opened.source)
        given = {name: value for name, value in given.items()
                 if spelled.get(name) not in line.given
                 and not (name in there and _same(there[name], value))}
        taken = [name for name in taken if name in there]
        if (given or taken) and not os.path.isfile(opened.path):
            raise ValueError(f"{os.path.basename(opened.path)} is not beside the script; allowed: "
                             "it, or these settings in the script")
        try:
            body = self.format.edited(opened.source, given, taken)
            found = self.format.read(opened.source._replace(text=body))
            names = [*_unlike(there, found, given, taken)]
        except (InputError, IndexError, RecursionError):
            names = [*given, *taken]
        if names:
            raise ValueError(f"{', '.join(names)}: no place in the text was found")
        flags, lines = self._flags(before, plan)
        flags = Flags((*flags.taken, *line.taken), {**flags.given, **line.given})
        script = opened.begun.text
        if opened.inside:
            if script.count(opened.source.text) != 1:
                raise ValueError(f"the script writes {opened.launch and opened.launch.file} with "
                                 "values of its own; allowed: a file beside it")
            script = script.replace(opened.source.text, body)
        wanted = self._environment(before, plan)
        if opened.launch is not None and (wanted or flags.taken or flags.given):
            text = edit_script.edited(script, flags, self._table, edit_script.Head(
                opened.launch.variables, wanted), partial(self._stands, script, flags))
            if text is None:
                raise ValueError("arguments of the launch are not found in the text of the script")
            script = text
        return _Texts(body, script), lines

    @property
    def _table(self) -> KnownArguments:
        """How the arguments of the launch are written."""
        if self.format.words is not None:
            return known_arguments()
        plain = self.format.spelled(self.opened.source).values() if self.format.plain else ()
        return KnownArguments(dict.fromkeys(plain, "plain"), frozenset(), frozenset())

    def _environment(self, before: Plan | None, plan: Plan) -> dict[str, str]:
        """Variables that the new plan asks for, and the launch does not give it."""
        launch = self.opened.launch
        there = launch.variables if launch is not None else (
            {} if before is None else self.format.environment(before))
        return {name: value for name, value in self.format.environment(plan).items()
                if there.get(name, UNSET.get(name)) != value}

    def _needs(self, before: Plan | None, plan: Plan) -> tuple[str, ...]:
        """What a launch that is not in the files has to give."""
        if self.opened.launch is not None:
            return ()
        return tuple(f"the new file needs {name}={value} in the environment"
                     for name, value in self._environment(before, plan).items())

    def _flags(self, before: Plan | None, plan: Plan) -> tuple[Flags, list[Change]]:
        """What changes of the arguments of the launch."""
        if self.format.words is None or self.opened.launch is None:
            return Flags((), {}), []
        given = self._given
        new = self.format.words(plan)
        old = given if before is None else self.format.words(before)
        there = {ALIASES.get(name, name): value for name, value in given.items()}
        names = [name for name in dict.fromkeys((*old, *new))
                 if old.get(name) != new.get(name) != there.get(name)
                 and (before is not None or name in new)
                 and (self._arguments is None or name in self._arguments)]
        taken = tuple(one for one in given if ALIASES.get(one, one) in names)
        flags = Flags(taken, {name: new[name] for name in names if name in new})
        return flags, [Change(name=f"--{name}", before=shown_words(given, name),
                              after=shown_words(flags.given, name))
                       for name in dict.fromkeys((*taken, *flags.given))]

    def _stands(self, before: str, flags: Flags, text: str) -> bool:
        """Whether a new script has the commands of the old one, but for arguments that change."""
        opened, table = self.opened, self._table
        assert opened.script is not None
        given = {name: value for name, value in opened.given.items() if "." not in name}
        try:
            scripts = [ShellScript(one, opened.script.where, {**slurm(one), **given})
                       for one in (before, text)]
            launches = [launched(one, opened.begun.path) for one in scripts]
        except InputError:
            return False
        if None in launches:
            return False
        old, new = ([one.plain(" ".join(each.words)) for each in one.commands
                     if each.words[0] not in SHOWING and launch and each.line != launch.line]
                    for one, launch in zip(scripts, launches, strict=True))
        first, second = (arguments_of(launch.words if launch else (), table)
                         for launch in launches)
        return old == new and applied(first[0], flags) == second[0] and first[1] == second[1]

    def _wrong(self, plan: Plan, texts: _Texts) -> Iterator[str]:
        """Why new texts are not the plan, read again."""
        opened = changed(self.opened, texts.body, texts.script)
        if opened is None:
            yield "the new script hands over no file"
            return
        try:
            found = read_file(opened)
            again = evaluate(found.model, self.cluster, found.job, found.configuration)
        except InputError as error:
            yield f"the new file is refused: {error}"
            return
        for name in ("global_batch", "seq_len", "precision"):
            if getattr(found.job, name) != getattr(plan.inputs.job, name):
                yield f"the new file has another {name}"
        if again.step_time_s != plan.step_time_s:
            mine, theirs = self.format.said(again), self.format.said(plan)
            differs = [name for name in theirs if not _same(mine.get(name), theirs[name])]
            if (words := self.format.words) is not None:
                first, second = words(again), words(plan)
                differs += [f"--{name}" for name in dict.fromkeys((*first, *second))
                            if first.get(name) != second.get(name)]
            yield ("the file does not say all of the plan: its step takes "
                   f"{plan.step_time_s:.6g} s, by the file {again.step_time_s:.6g} s; it cannot "
                   f"say {', '.join(differs) or 'what differs'}")

    def _files(self, texts: _Texts) -> dict[str, str]:
        opened = self.opened
        name = os.path.basename(opened.begun.path)
        script = {edit_script.NAME if opened.begun.capture else name: texts.script}
        if opened.inside:
            return script
        return {os.path.basename(opened.path): texts.body,
                **(script if texts.script != opened.begun.text else {})}


def _same(one: object, other: object) -> bool:
    """Whether values are alike; tuples are lists in files, and True is not 1."""
    return repr(_listed(one)) == repr(_listed(other))


def _listed(value: object) -> object:
    if isinstance(value, Code):
        return value.text
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


def _unlike(
    there: Plain, found: Plain, given: Plain, taken: Iterable[str]
) -> Iterator[str]:
    """Settings of a new text that are not as they should be."""
    out = {*taken}
    above = {name[:at] for name in given for at, one in enumerate(name) if one == "."}
    wanted = {name: value for name, value in {**there, **given}.items()
              if name not in out and name not in above}
    for name in dict.fromkeys((*wanted, *found)):
        if name not in above and not (name in wanted and name in found
                                      and _same(wanted[name], found[name])):
            yield name
