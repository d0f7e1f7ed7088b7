"""Every way to set a variable in every construct, with bash as the judge: read right, or refused.

Each script sets TP to 1, then in one way to something else inside one construct, and launches with
it. bash runs it in a folder of its own, where the launcher prints its words. NEST may refuse the
text of the script; what it reads must be what bash launched, and what `nest capture` records of
those refused must be it too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest.errors import InputError
from nest.frameworks.capture.document import ScriptText
from nest.frameworks.capture.recording import capture
from nest.frameworks.megatron.script import followed

PART = int(os.environ.get("NEST_IDIOMS", "12"))
"""One script in so many is tried; 1: all."""
CAPTURED = int(os.environ.get("NEST_IDIOMS_CAPTURED", "60"))
"""One script in so many is captured."""
NAME = "--tensor-model-parallel-size"
LAUNCH = f"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 {NAME} "

SETTING = [
    "TP=4", "TP=$((TP*4))", "TP+=6", "export TP=4", "declare TP=4", "typeset -x TP=4",
    "declare -g TP=4", "readonly TP=4", "local TP=4", "let TP=4", "let TP+=3", "((TP=4))",
    "((TP++))", "((++TP, TP*=2))", ": $((TP=4))", ": $((TP<<=2))", "TP=$((TP?4:2))",
    "unset TP; : ${TP:=4}", "unset TP; TP=${TP:-4}", "unset TP", "printf -v TP 4", "printf -vTP 4",
    "read TP <<< 4", "read -r X TP <<< '2 4'", "IFS=, read X TP <<< 2,4", "eval TP=4",
    "eval 'TP=4'", "X=TP; eval $X=4", "X='TP=4'; eval \"$X\"", "eval \"$(echo TP=4)\"",
    "eval \"$(printf TP=4)\"", "mapfile -t X <<< 4; TP=${X[0]}", "mapfile -t TP <<< 4",
    "for TP in 2 4; do :; done", "for ((TP=0;TP<4;TP++)); do :; done", "declare -i TP=2*2",
    "declare -i TP; TP=2*2", "declare -n X=TP; X=4", "TP=$(echo 4)", "TP=`echo 4`",
    "TP=$(printf 4)", "TP=$(expr 2 + 2)", "TP=$[2+2]", ". ./set.sh", "source ./set.sh",
    "source set.sh", "source ./none.sh", "cat > new.sh <<< TP=4; source ./new.sh",
    "f() { TP=4; }; f", "f() { local TP=4; }; f", "f() { local TP; TP=4; }; f",
    "f() { TP=$1; }; f 4", "function f { TP=$2; return; TP=3; }; f 2 4", "f() ( TP=4 ); f",
    "f() { eval \"$1=4\"; }; f TP", "f() { declare -g TP=4; }; f", "f() { printf -v $1 4; }; f TP",
    "f() { g; }; g() { TP=4; }; f", "(TP=4)", "{ TP=4; }", "TP=4 true", "TP=4 f", "TP=4 :",
    "TP=4 | true", "true | TP=4", "TP=4 & wait", "X=(2 4); TP=${X[1]}", "X=(2 4); TP=${X[-1]}",
    "X=(1 2 3 4); TP=${#X[@]}", "X=(1); X+=(4); TP=${X[1]}", "X[0]=2; X[1]=4; TP=${X[1]}",
    "X=(2); X[0]=4; TP=$X", "declare -A X=([a]=4); TP=${X[a]}", "TP=(4 2)", "TP[0]=4", "TP[1]=4",
    "X='2 4'; set -- $X; TP=$2", "set -- 4; TP=$1", "set -- 2 4; shift; TP=$1", "IFS=,; X=2,4; "
    "set -- $X; TP=$2; unset IFS", "X=2,4; IFS=, Y=($X); TP=${Y[1]}; unset IFS",
    "set -- -t 4; while getopts t: X; do TP=$OPTARG; done", "OPTARG=4; getopts t: X; TP=$OPTARG",
    "X=a4b; TP=${X:1:1}", "X=4x; TP=${X%x}", "X=tp4; TP=${X#tp}", "X=a.b.4; TP=${X##*.}",
    "X=4.a.b; TP=${X%%.*}", "X=4x; TP=${X/x/}", "X=TP; TP=${!X}4", "X=4; Y=X; TP=${!Y}",
    "X=4; TP=${X:+$X}", "TP=${X:+2}", "X=; TP=${X-4}", "X=; TP=${X:-4}", "TP=$'4'", "TP=\"4\"''",
    "TP=\\4", "TP={4,2}", "X=4; TP=\"$X\"", "TP=$((010))", "TP=$((2#100))", "TP=$((0x4))",
    "TP=08; TP=$((10#$TP))", "TP=$((8>>1))", "TP=$((5&6))", "TP=$((1,4))", "command eval TP=4",
    "builtin declare TP=4", "X=export; $X TP=4", "X='declare TP=4'; $X", "\\eval TP=4",
    "trap 'TP=4' DEBUG; true", "trap 'TP=4' EXIT", "trap 'TP=4' USR1; kill -USR1 $$; true",
    "test 1 -eq 1 && TP=4", "[ 1 = 2 ] || TP=4", "[[ ab == a* ]] && TP=4", "[[ 3 -gt 2 ]] && TP=4",
    "((1<2)) && TP=4", "true && TP=4 || TP=2", "false && TP=4 || TP=2", "! true || TP=4",
    "exec {TP}> file", "set -a; TP=4", "set -e; TP=4; true", "readonly TP; TP=4; true",
    "select TP in 4; do break; done <<< 1", "coproc TP { true; }", "alias TP=true; TP=4",
    "shopt -s expand_aliases; alias x='TP=4'\nx", "hash -r; TP=4", "wait -p TP",
    "RANDOM=4; TP=$RANDOM",
    "SECONDS=4; TP=$SECONDS", "TP=$LINENO", "TP=$#", "TP=$?", "while read TP; do break; done <<< 4",
    "echo 4 | read TP", "echo 4 | while read X; do TP=$X; done", "cd .; TP=4", "TP=4 export TP",
    "TP=4 eval 'X=$TP'; TP=$X", "bash -c TP=4", "X=4 bash -c 'TP=$X'", "exec 3>&1; TP=4",
    "TP=4 # TP=2", "TP=4;TP=2 # x", "TP=\\\n4", "TP='4\n'; TP=$TP", "X=$TP$TP; TP=${X:1}",
    "cat <<E >/dev/null\nTP=4\nE", "read TP <<E\n4\nE", "time TP=4", "true; TP=4; false",
    "TP=${X:=4}", "TP=${X:=4}$X; TP=${TP#4}", "X='a b 4'; TP=${X##* }", "X=4; unset X; TP=2$X",
    "TP=4; exec true", "nohup true; TP=4", "X=(--a 4); TP=${X[@]:1}", "TP=${TP/1/4}",
    "X='TP=4'; ((X)) || true", "X=abcd; Y=${X:TP=3}", "G='*.sh'; X=($G); TP=${#X[@]}",
    "echo 4 | while IFS= read -r X; do TP=$X; done; X='2 4'; set -- $X; TP=$2",
    "IFS=: read -r X Y <<< 2:4; X='2 4'; set -- $X; TP=$2", "TP=${TP^}",
    "[ a = a ] && TP=4 || TP=2", "[ a = b ] && TP=4 || TP=2", "[ -n \"$NOPE\" ] || TP=4",
    "[[ $TP = 1 && 1 = 1 ]] && TP=4", "f() { return 1; }; f && TP=4", "A=(1 4); A=2; TP=${A[1]}",
    "A=(1 2); A+=4; TP=$A", "eval 'f() { TP=4; }'; f", "x=TP; unset $x; TP=${TP-4}",
    "unset TP; TP=${TP-4}", "cd . && TP=4", "{ TP=4; } && TP=3", "! [ 1 = 2 ] && TP=4",
    "true && [ 1 = 1 ] && TP=4", "[ 1 = 1 ] && ( TP=4 )", "[ 1 = 1 ] && f() { TP=3; } && TP=4",
    "if [ 1 = 1 ] && [ $TP -lt 4 ]; then TP=4; fi", "if [ 1 = 2 ] || [ $TP = 1 ]; then TP=4; fi",
    "set -- 2 4; shift $TP; TP=$1", "[ 1 = 1 ] && TP=$(false) || TP=4", "[ 1 -eq 01 ] && TP=4",
    "[ $TP ] && TP=4", "[ \"$NOPE\" ] && TP=2 || TP=4", "[ -n $NOPE ] && TP=4",
    "[ ! 1 = 2 ] && TP=4",
    "[[ $TP == ? ]] && TP=4", "[[ $TP < 2 ]] && TP=4", "[ $TP = 1 -a 1 = 1 ] && TP=4",
    "[ $TP = 1 ] && { TP=4; false; } || TP=2", "[ 1 = 1 ] && exec 3>&1 && TP=4",
    "TP=2 && TP=4", "TP=4 && false || TP=2", "TP=$(false) || TP=4",
    "f() { TP=4; }; unset -f f; f", "f=2; unset -v f",
    "A=TP; export $A=4", "A=4; declare TP=$A", "A='4 5'; export TP=$A", "A=(4); export TP=$A",
    "cat > out <<E\nTP=4\nE", ": <<'E' && TP=4\n'\nE", "TP=4; : <<-E\n\t\"\n\tE",
    "TP=$(( TP == 1 && 2 ? 4 : 2 ))", "TP=$(( 0 && (TP=2) ))", "TP=$(( -TP + 5 ))",
]
"""Ways to change TP."""
CONSTRUCTS = [
    "{}", "if true; then {}; fi", "if false; then {}; fi", "if ! false; then {}; fi",
    "if [ 1 -eq 2 ]; then :; elif [ a = a ]; then {}; else :; fi",
    "if [ -d /nonexistent ]; then {}; fi", "if [ -d / ]; then {}; fi", "if {}; then :; fi",
    "if grep -q x /dev/null; then :; else {}; fi", "if ls / >/dev/null; then {}; fi",
    "if [ \"$(echo a)\" = a ]; then {}; fi", "if [[ $(uname) == Nope ]]; then {}; fi",
    "if [ -z \"$NOTSET\" ]; then {}; fi", "if [ -n \"$NOTSET\" ]; then {}; fi",
    "case a in b) :;; a|c) {};; *) :;; esac", "case a in b) {};; esac",
    "case $(uname) in Nope) {};; esac",
    "case $(uname) in Nope) :;; *) {};; esac", "case a in a) :;;& [ab]) {};; esac",
    "case a in a) :;& b) {};; esac", "for i in 1 2; do {}; done", "for i in; do {}; done",
    "for i in $(seq 2); do {}; done", "for i in /nonexistent*; do {}; done",
    "for ((i=0;i<2;i++)); do {}; done", "for i in 1 2; do [ $i = 1 ] && continue; {}; done",
    "for i in 1 2; do {}; break; done", "for i in 1 2; do break; {}; done",
    "for i in 1 2 3; do if [ -d / ]; then {}; break; fi; done",
    "for i in 1 2 3; do if [ -d / ]; then continue; fi; {}; done",
    "while true; do {}; break; done", "while [ -d /nonexistent ]; do {}; done",
    "i=0; while [ $i -lt 2 ]; do {}; i=$((i+1)); done", "until [ -d / ]; do {}; done",
    "while {}; false; do :; done", "until {}; true; do :; done",
    "while read l; do {}; done <<< a", "echo a | while read l; do {}; done",
    "h() {{ {}; }}; h", "h() {{ {}; }}", "h() {{ return; {}; }}; h",
    "h() {{ [ -d / ] && return; {}; }}; h", "h() {{ {}; return 1; }}; h || true",
    "h() ( {} ); h", "h() {{ if [ -d / ]; then {}; return; fi; TP=1; }}; h",
    "{{ {}; }}", "( {} )", "{{ {}; }} > /dev/null", "{{ {}; }} | cat", "true | {{ {}; }}",
    "{{ {}; }} & wait", "X=$({})", "true && {{ {}; }}", "false && {{ {}; }}", "false || {{ {}; }}",
    "[ -d / ] && {{ {}; }}", "[ -d /nonexistent ] && {{ {}; }}", "[ -d / ] || {{ {}; }}",
    "ls / >/dev/null && {{ {}; }} || TP=3", "! {{ {}; }}", "set -e; {{ {}; }} || true; set +e",
    "trap '{{ TP=3; }}' EXIT; {}", "if true; then if [ -d / ]; then {}; fi; fi",
    "k() {{ \"$@\"; }}; k :; {}", "z=$(true); {}", "source ./none.sh; {}", "{}; source ./none.sh",
    "eval ':'; {}", "eval \"$(true)\"; {}",
]
"""Constructs around it; a part that is no list of commands there is an error of bash."""
USES = [
    "{launch}$TP", "{launch}\"${{TP}}\"", "{launch}${{TP:-2}}", "{launch}$((TP))",
    "A=\"{name} $TP\"\n{start}$A", "A=({name} \"$TP\")\n{start}\"${{A[@]}}\"",
    "export TP\nbash -c '{launch}$TP'", "eval \"{launch}$TP\"", "{start}{name}=$TP",
    "run() {{ {launch}$1; }}\nrun $TP", "( {launch}$TP ) 2>&1 | cat",
]
"""Ways to launch with it."""


def scripts() -> Iterator[str]:
    number = 0
    for one, setting in enumerate(SETTING):
        for two, construct in enumerate(CONSTRUCTS):
            number += 1
            plain = not two or setting == "TP=4"
            if not plain and number % PART:
                continue
            for use in USES if plain and PART == 1 else (USES[(3 * one + two) % len(USES)],):
                launch = use.format(launch=LAUNCH, name=NAME, start=LAUNCH.replace(NAME, ""))
                yield f"TP=1\n{construct.format(setting)}\n{launch}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("idioms")
    (found / "bin").mkdir()
    program = found / "bin" / "torchrun"
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@" >> "$LOG"\necho >> "$LOG"\n',
                       encoding="utf-8")
    program.chmod(0o755)
    (found / "set.sh").write_text("TP=4\n", encoding="utf-8")
    return found


def launched(text: str, folder: Path) -> list[str]:
    """What bash launches with: the value of each launch."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    (folder / "new.sh").unlink(missing_ok=True)
    (folder / "run.sh").write_text(text, encoding="utf-8")
    subprocess.run(
        ["bash", "run.sh"], cwd=folder, timeout=20, check=False, stdin=subprocess.DEVNULL,
        capture_output=True, env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "LOG": str(log)})
    if not log.exists():
        return []
    found = []
    for line in log.read_text(encoding="utf-8").replace("\n<", "\x00<").split("\x00"):
        words = line.strip().strip("<>").split("><")
        found.append(value_of(words[words.index("pretrain_gpt.py") + 1:]))
    return found


def value_of(words: list[str]) -> str:
    """Of the argument, or what stands in its place."""
    given = [at for at, word in enumerate(words) if word.partition("=")[0] == NAME]
    if not given:
        return "none"
    after = " ".join(words[given[-1]:])
    return after.removeprefix(NAME).removeprefix("=").strip()


def understood(text: str, folder: Path) -> str | None:
    """What NEST reads; None: it refuses."""
    try:
        return value_of([*followed(ScriptText(text, str(folder / "run.sh")), "run.sh", {}).words])
    except InputError as error:
        assert len(str(error).splitlines()) == 1, error
        return None


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")
def test_no_idiom_is_read_wrongly(folder: Path) -> None:
    wrong, right, refused = [], 0, 0
    for text in scripts():
        (folder / "new.sh").unlink(missing_ok=True)
        found = understood(text, folder)
        if found is None:
            refused += 1
            continue
        expected = launched(text, folder)
        if expected and {*expected} != {found}:
            wrong.append((text.replace(LAUNCH, "RUN "), found, expected))
        right += bool(expected)
    print(f"{right} right, {refused} refused, {len(wrong)} wrong")
    assert not wrong, "\n".join(map(repr, wrong[:10]))
    assert right > 50


def recorded(text: str, folder: Path) -> list[str]:
    """What `nest capture` records: the value of each launch."""
    (folder / "new.sh").unlink(missing_ok=True)
    (folder / "run.sh").write_text(text, encoding="utf-8")
    try:
        found = capture(["bash", "run.sh"], time_limit=20)
    except InputError as error:
        assert "starts no program" in str(error), error
        return []
    return [value_of([*one.words[one.words.index("pretrain_gpt.py") + 1:]])
            for one in found.launches]


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")
def test_what_text_does_not_say_capture_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    wrong, count = [], 0
    for number, text in enumerate(scripts()):
        if number % CAPTURED or "coproc" in text:  # whose descriptors are there until it ends
            continue
        found, expected = recorded(text, folder), launched(text, folder)
        count += bool(expected)
        if sorted(found) != sorted(expected):
            wrong.append((text.replace(LAUNCH, "RUN "), found, expected))
    assert not wrong, "\n".join(map(repr, wrong[:10]))
    assert count > 10
