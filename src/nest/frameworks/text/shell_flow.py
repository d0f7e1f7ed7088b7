"""Which statements of a script are run: lists, conditions and loops, on what is known.

Where it is not known which way a script goes, all ways are followed, each with variables of its
own, and where they meet a variable that differs is unknown. A loop whose turns are not known is
followed until its variables stay as they are.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from nest.errors import InputError
from nest.frameworks.text.conditions import Tests
from nest.frameworks.text.shell_tree import (
    MARK,
    AndOrList,
    Arithmetic,
    Case,
    Commands,
    Count,
    Directed,
    For,
    Function,
    If,
    Loop,
    Node,
    Redirect,
    ShellBlock,
    ShellPipeline,
    ShellState,
    Simple,
    Test,
    Unknown,
    merged,
)
from nest.frameworks.text.shell_words import Words

MOST_STEPS = 20_000
"""Statements that are followed."""
MOST_TURNS = 200
"""Turns of a loop that are followed one by one; then all of them at once."""
Status = bool | None
"""Whether a command succeeds; None: not known."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class ShellCommand(NamedTuple):
    """A command of a script with its words as they would be run."""

    line: int
    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables of the environment, and those set in front of the command."""
    outer: tuple[str, ...] = ()
    """Words of the command that started the script with this one."""


class Flow(Words):
    """Statements in a state of variables."""

    def __init__(self, where: str, unknown: list[Unknown], state: ShellState) -> None:
        super().__init__(where, unknown, state)
        self.commands: list[ShellCommand] = []
        self.assumptions: dict[str, None] = {}
        """Variables that decide something because they are not set."""
        self._steps, self._testing = 0, 0
        self._loops: list[list[tuple[str, ShellState]]] = []
        self._returns: list[list[ShellState]] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on what decided something because it is not set; none: nothing did."""
        named = ", ".join(self.assumptions)
        return (f"not set in the script, and empty in its tests: {named} (--set "
                "NAME=VALUE)",) if named else ()

    @abstractmethod
    def _simple(self, node: Simple) -> Status:
        """Run a command."""

    @abstractmethod
    def _redirect(self, redirects: Iterable[Redirect], line: int) -> None:
        """What redirections change."""

    @abstractmethod
    def _lose_all(self, line: int, text: str) -> None:
        """Every variable becomes unknown."""

    # ------------------------------------------------------------ lists

    def _list(self, commands: Commands) -> Status:
        status: Status = True
        for chain in commands:
            if self.state.ended:
                break
            if chain.background:
                self._own(lambda chain=chain: self._chain(chain))  # type: ignore[misc]
                status = True
                continue
            status = self._chain(chain)
            if status is False and not chain.rest and not chain.first.turned and (
                    "e" in self.state.options and not self._testing and not self.state.ended):
                self.state.ended = "exit"
        return status

    def _chain(self, chain: AndOrList) -> Status:
        status = self._pipeline(chain.first, bool(chain.rest))
        for number, (join, pipeline) in enumerate(chain.rest, 1):
            if self.state.ended:
                return status
            more = number < len(chain.rest)
            if status is None:
                skipped = join == "||"
                ends = self._either([
                    lambda pipeline=pipeline, more=more: self._pipeline(  # type: ignore[misc]
                        pipeline, more), lambda skipped=skipped: skipped], chain.line)  # type: ignore[misc]
                status = ends
            elif status == (join == "&&"):
                status, stopped = self._passed(
                    lambda pipeline=pipeline, more=more: self._pipeline(  # type: ignore[misc]
                        pipeline, more))
                status = join == "||" if stopped else status
        return status

    def _pipeline(self, pipeline: ShellPipeline, tested: bool) -> Status:
        self._testing += tested or pipeline.turned
        if len(pipeline.parts) == 1:
            status = self._node(pipeline.parts[0])
        else:
            for part in pipeline.parts:
                self._own(lambda part=part: self._node(part))  # type: ignore[misc]
            status, self._cause = None, ""
        self._testing -= tested or pipeline.turned
        return not status if pipeline.turned and status is not None else status

    _cause = ""
    """Mark of what decides the last status, where that is not known."""

    def _own(self, run: Callable[[], Status]) -> Status:
        """Run what has a shell of its own, which changes nothing of this one."""
        kept, loops, returns = self.state, self._loops, self._returns
        self.state, self._loops, self._returns = kept.copy(), [], []
        status = run()
        if self.state.ended:
            status = None
        self.state, self._loops, self._returns = kept, loops, returns
        return status

    def _either(self, runs: Sequence[Callable[[], Status]], line: int) -> Status:
        """Go on behind one of several ways, which is not known."""
        start, ends, cause, shown = self.state, [], self._cause, self._shown
        statuses = []
        for run in runs:
            self.state = start.copy()
            statuses.append(run())
            ends.append((statuses[-1], self.state))
        self._cause, self._shown = cause, shown
        self._meet([state for _, state in ends], line)
        left = {status for status, state in ends if not state.ended}
        return left.pop() if len(left) == 1 else None

    def _meet(self, states: Sequence[ShellState], line: int) -> None:
        """The state where several ways meet; those that end are kept for where they go on."""
        alive = []
        for state in states:
            if not state.ended:
                alive.append(state)
            elif state.ended in ("break", "continue") and self._loops:
                self._loops[-1].append((state.ended, state))
            elif state.ended == "return" and self._returns:
                self._returns[-1].append(state)
        if alive:
            self.state = self._merged(alive, line)
            return
        self.state = states[0].copy()
        self.state.ended = "exit" if all(one.ended == "exit" for one in states) else "gone"

    def _merged(self, states: Sequence[ShellState], line: int) -> ShellState:
        if len(states) == 1:
            return states[0]
        cause = self.unknown[int(self._cause[1:-1])] if self._cause else None

        def unknown(name: str) -> str:
            if name in self.given:
                return self.given[name]
            if cause is None:
                return self.mark(line, self._shown, name=name)
            return self.mark(cause.line, cause.text, name=name)
        return merged(states, unknown, self.lost)

    _shown = ""
    """Text of the last condition."""

    # ------------------------------------------------------------ blocks

    def _node(self, node: Node) -> Status:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise InputError(f"{self.where}: line {node.line}: more than {MOST_STEPS} statements "
                             "are run")
        match node:
            case Simple():
                return self._simple(node)
            case Directed(line, inner, redirects):
                self._redirect(redirects, line)
                return self._node(inner)
            case ShellBlock(_, own, body):
                return self._own(lambda: self._list(body)) if own else self._list(body)
            case Function(_, name, _):
                self.state.functions[name] = node
                return True
            case If(line, branches, other):
                return self._if(branches, other, line)
            case Loop():
                return self._loop(node)
            case For():
                return self._for(node)
            case Count(line, texts, body):
                self._compute(texts[0], line)
                return self._turns(
                    lambda: self._compute(texts[1], line) if texts[1].strip() else True,
                    lambda: self._list(body), line, lambda: self._compute(texts[2], line))
            case Case():
                return self._case(node)
            case Arithmetic(line, text):
                return self._compute(text, line)
            case Test(line, words):
                return self._tested(lambda tests: tests.double(words), line, " ".join(words))

    def _compute(self, text: str, line: int) -> Status:
        """``(( ... ))``"""
        found = self.arithmetic(text, f"(({text}))", line)
        if MARK.search(found):
            one = self.unknowns(found)[0]
            self._cause = self.mark(line, one.text, name=one.name)
            self._shown = text
            return None
        return int(found) != 0

    def _tested(self, test: Callable[[Tests], bool | None], line: int, shown: str) -> Status:
        kept, self.assumed = self.assumed, []
        tests = Tests(self, line)
        found = test(tests)
        decides = tests.cause or next(iter(self.assumed), "")
        used = [self.unknown[int(one[1:-1])].name for one in self.assumed]
        self.assumed = kept
        if found is None:
            self._shown, self._cause = shown, decides
        else:
            self.assumptions |= dict.fromkeys(name for name in used if _NAME.fullmatch(name))
        return found

    @contextmanager
    def _tests(self) -> Iterator[None]:
        self._testing += 1
        yield
        self._testing -= 1

    def _if(
        self, branches: Sequence[tuple[Commands, Commands]], other: Commands, line: int
    ) -> Status:
        if not branches:
            return self._list(other)
        (condition, body), *rest = branches
        with self._tests():
            status = self._condition(condition)
        if self.state.ended:
            return status
        if status is None:
            return self._either([lambda: self._list(body),
                                 lambda: self._if(rest, other, line)], line)
        ways: list[Callable[[], Status]] = [
            lambda: self._if(rest, other, line), lambda: self._list(body)]
        ended, stopped = self._passed(ways[status])
        return ways[not status]() if stopped else ended

    def _passed(self, run: Callable[[], Status]) -> tuple[Status, bool]:
        """Run a way that was chosen; True: it only ends the script, because the user's variables
        are not given. Then the script does not go this way where it trains."""
        if not self.assumptions:
            return run(), False
        kept, count = self.state.copy(), len(self.commands)
        status = run()
        if self.state.ended != "exit" or any(
                ".py" in word for one in self.commands[count:] for word in one.words):
            return status, False
        self.state = kept
        del self.commands[count:]
        return None, True

    def _bracket(self, tests: Tests, node: Simple) -> bool | None:
        words = [field for word in node.words for field in self.fields(str(word), node.line)]
        if words[0] == "[" and words.pop() != "]":
            return None
        return tests.single(words[1:])

    def _condition(self, commands: Commands) -> Status:
        self._cause, self._shown = "", "a condition"
        return self._list(commands)

    def _case(self, node: Case) -> Status:
        subject = self._without(node.word, node.line)
        loose = self.hard(subject)
        if not loose and all(end == ";;" for _, _, end in node.branches):
            for number, (patterns, body, _) in enumerate(node.branches):
                fits = [self._fits(subject, one, node.line) for one in patterns]
                if True in fits and None not in fits[:fits.index(True)]:
                    status, stopped = self._passed(
                        lambda body=body: self._list(body))  # type: ignore[misc]
                    if not stopped:
                        return status
                    loose = next((one[0] for one in MARK.finditer(
                        self.text(node.word, node.line))), "any")
                    break
                if None in fits:
                    loose = "any"
                    node = node._replace(branches=node.branches[number:])
                    break
            else:
                return True
        self._cause = loose if loose != "any" else ""
        self._shown = f"case {node.word}"
        return self._either([*(
            lambda body=body: self._list(body)
            for _, body, _ in node.branches), lambda: True], node.line) if all(
                end == ";;" for _, _, end in node.branches) else self._any_of(node)

    def _any_of(self, node: Case) -> Status:
        """Branches that may follow each other."""
        for _, body, _ in node.branches:
            self._either([lambda body=body: self._list(body), lambda: True],  # type: ignore[misc]
                         node.line)
        return None

    def _without(self, word: str, line: int) -> str:
        """A word where what is not set is empty."""
        kept, self.assumed = self.assumed, []
        found = self.text(word, line)
        self.assumptions |= dict.fromkeys(
            name for one in self.assumed if _NAME.fullmatch(
                name := self.unknown[int(one[1:-1])].name))
        self.assumed = kept
        return found

    def _fits(self, subject: str, word: str, line: int) -> bool | None:
        return Tests(self, line)._matched(subject, "==", word)

    # ------------------------------------------------------------ loops

    def _loop(self, node: Loop) -> Status:
        def condition() -> Status:
            with self._tests():
                found = self._condition(node.condition)
            return found if found is None else found != node.turned
        return self._turns(condition, lambda: self._list(node.body), node.line)

    def _for(self, node: For) -> Status:
        line = node.line
        loose = ""
        if node.words is None:
            words = [*self.arguments(line, '"$@"')]
        else:
            words = [field for word in node.words for field in self.fields(word, line)]
            quoted = all(re.fullmatch(r'"[^"]*"', word) for word in node.words)
            if not quoted and any(re.search(r"[*?\[]", word) for word in words):
                loose = self.mark(line, f"for {node.name} in {' '.join(node.words)}")
        loose = loose or next((mark for word in words if (mark := self.hard(word))), "")
        words = [word for word in map(self.soft, words) if word or node.words is None]
        if node.select:
            self.lose("REPLY", line, "select")
            loose = loose or self.mark(line, "select")
        left = iter(words)

        def turn() -> Status:
            if loose:
                self.put(node.name, (self.mark(
                    line, self.unknown[int(loose[1:-1])].text, name=node.name),), line)
                self._cause = loose
                return None
            word = next(left, None)
            if word is None:
                return False
            self.put(node.name, (word,), line)
            return True
        if not loose and len(words) > MOST_TURNS:
            loose = self.mark(line, f"for {node.name}")
        return self._turns(turn, lambda: self._list(node.body), line)

    def _turns(
        self, condition: Callable[[], Status], body: Callable[[], Status], line: int,
        step: Callable[[], Status] = lambda: True,
    ) -> Status:
        """A loop: turn by turn as long as its condition is known, then all further ones at once."""
        self._loops.append([])
        exits: list[ShellState] = []
        status: Status = None
        for _ in range(MOST_TURNS):
            before = self.state.copy()
            count = len(self.commands)
            status = condition()
            if self.state.ended or status is False:
                break
            if status is None:
                self.state = before
                del self.commands[count:]
                break
            self._turn(body, step, exits, line)
            if self.state.ended:
                break
        if not self.state.ended and status is not False:
            self._all_turns(condition, body, step, exits, line)
        self._loops.pop()
        if self.state.ended == "return" and exits and self._returns:
            self._returns[-1].append(self.state)
        alive = [self.state] if not self.state.ended else []
        if alive or exits:
            self.state = self._merged([*alive, *exits], line)
        return None if not self.state.ended else status

    def _turn(
        self, body: Callable[[], Status], step: Callable[[], Status], exits: list[ShellState],
        line: int
    ) -> None:
        """One turn behind the condition; ``exits`` takes the states that leave the loop."""
        body()
        waiting, self._loops[-1] = self._loops[-1], []
        ends = [] if self.state.ended not in ("", "continue") else [self.state]
        exits += [state for kind, state in waiting if kind == "break"]
        ends += [state for kind, state in waiting if kind == "continue"]
        if self.state.ended == "break":
            exits.append(self.state)
        for state in (*ends, *exits):
            state.ended = ""
        if ends:
            self.state = self._merged(ends, line)
            step()
        else:
            self.state = self.state.copy()
            self.state.ended = "exit" if self.state.ended == "exit" else (
                self.state.ended if self.state.ended == "return" else "gone")

    def _all_turns(
        self, condition: Callable[[], Status], body: Callable[[], Status],
        step: Callable[[], Status], exits: list[ShellState], line: int,
    ) -> None:
        """Any number of turns: until the variables stay as they are."""
        base, count = self.state, len(self.commands)
        for turn in range(MOST_TURNS):
            del self.commands[count:]
            exits_now: list[ShellState] = []
            self.state = base.copy()
            status = condition()
            after, ended = self.state.copy(), self.state.ended
            cause = self._cause
            if not ended and status is not False:
                self._turn(body, step, exits_now, line)
                if self.state.ended == "return" and self._returns:
                    self._returns[-1].append(self.state)
            self._cause = cause
            end = self.state
            new = base if end.ended else self._merged([base, end], line)
            if turn > 10:
                self.state = new
                self._lose_all(line, "a loop")
                new = self.state
            if new == base:
                break
            base = new
        exits += exits_now
        self.state = after
        if not ended and status is True:
            self.state.ended = "gone"
