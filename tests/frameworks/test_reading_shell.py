"""Launch scripts as text: what bash would run, what is not known, and that nothing is executed."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

import nest
from nest.errors import InputError
from nest.frameworks.text.shell import ShellScript

RUN = "pretrain_gpt.py --num-layers 8"


def words(text: str, **given: str) -> list[str]:
    """Of the last command."""
    script = ShellScript(text, "run.sh", given)
    return [script.plain(word) for word in script.commands[-1].words]


@pytest.mark.parametrize("text", [
    "A=3\nB=$A\nprintf '%s\\n' $A $B ${A}x \"$A $B\" '$A' \\$A",
    "A=(1 \"2 3\" 4)\nA+=(5)\nprintf '%s\\n' ${A[@]} \"${A[@]}\" ${A[*]}",
    "A='--x 1 --y 2'\nprintf '%s\\n' $A \"$A\"",
    "A=(\n  --x 1  # a comment\n  # another\n  --y \"a#b\" 'c d'\n)\nprintf '%s\\n' \"${A[@]}\"",
    "printf '%s\\n' a \\\n  b \\\n  c # d",
    "printf '%s\\n' ${X:-7} ${X-8} ${Y:=9} $Y ${Y:+10} ${X:-${Y}}",
    "printf '%s\\n' \"${X:-a b}\" ${X:-\"a b\"} ${X:-a b}",
    "A=1\nif [ $A -gt 0 ]; then B=2; else B=3; fi\nprintf '%s\\n' $B",
    "A=fp8\nif [[ \"$A\" == \"bf16\" ]]; then B=2\nelif [ \"$A\" = fp8 ]; then B=4\nelse B=3\nfi\n"
    "printf '%s\\n' $B",
    "if [ -z \"$Q\" ]; then B=2; fi\nprintf '%s\\n' $B",
    "export A=5 B=6\nprintf '%s\\n' $A $B",
    "A=x\nA+=y\nprintf '%s\\n' $A${A}\"$A\"",
    "f() {\n  A=9\n}\nA=1\nprintf '%s\\n' $A",
    "cat <<EOF >/dev/null\nA=$(echo 5)\nEOF\nprintf '%s\\n' 1",
    "A=()\nprintf '%s\\n' a \"${A[@]}\" \"$@\" b",
    "A=\"a\\\"b\\$c\"\nprintf '%s\\n' \"$A\"",
    "A=a; B=b && printf '%s\\n' $A",
    "A=1\nexport A\nprintf '%s\\n' $A",
    "set -euo pipefail\nset -- --x 1 \"2 3\"\nset -x\nshift\nprintf '%s\\n' $# \"$1\" \"$@\"",
    "set -- a\nset -e -- \"$@\" b --c\nset -o errexit\nprintf '%s\\n' \"$@\" $2",
    "A='--x 1'\nset -- $A\nset e \"$@\"\nprintf '%s\\n' \"$@\"",
    "set -- 1\nset --\nprintf '%s\\n' $#",
    "if [ 1 -eq 2 ]; then B=1; else if [ a != b ]; then B=6; fi; fi\nprintf '%s\\n' $B",
    "A='B=4'\neval \"$A\"\neval 'C=5 D=6'\nprintf '%s\\n' $B $C $D",
    "A=(1 2 3)\nprintf '%s\\n' ${A[1]} \"${A[0]}\" ${A} \"${A[@]:-x}\" \"${B[@]:-x}\" ${B[*]-y}",
    "B=\nC=1\nunset C\nprintf '%s\\n' \"${B-4}\" ${B:-5} ${B+6} \"${C+7}\" ${C-8}",
    "A=(1 \"2 3\")\nB=()\nprintf '%s\\n' \"x ${A[*]} y\" \"${B[*]}z\"",
])
def test_words_are_those_of_bash(text: str) -> None:
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/bin:/bin"})
    assert words(text)[2:] == done.stdout.splitlines(), text


@pytest.mark.parametrize("text", [
    "N=$(nproc)", "N=`nproc`", "for n in $(seq 2); do N=$n; done", "while x; do N=1; done",
    "if grep -q x y; then N=1; else N=2; fi", "read N", "case $(x) in a) N=1;; esac",
    "N=$(( $(x) + 1 ))", "N=${!M}", "N=${M//a/b}", "x && N=4", "N=$((1/0))",
    "if [[ $(hostname) == a ]]; then N=2; fi", "if grep -q x y; then set -- 1; fi; N=$1",
    "x && set -- 4; N=$1", "source none.sh", "eval $(x)", "f() { x && N=4; }; f",
])
def test_what_is_not_understood_is_an_error_only_where_it_counts(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    rest = ("--hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 "
            "--micro-batch-size 1 --bf16")
    start = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers"
    path.write_text(f"{text}\n{start} 8 --save ckpt$N --train-iters $N {rest}\n", encoding="utf-8")
    assert nest.read(path).model.layers == 8
    path.write_text(f"{text}\n{start} $N {rest}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"run.sh: line 1: --num-layers depends on .*which the "
                                         r"text alone does not decide; .*`nest capture -- bash "
                                         r"run.sh` records, .*\(`nest read train.log`\)$"):
        nest.read(path)


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS "
                    "--hidden-size 64 --num-attention-heads 8 --seq-length 64 --bf16 "
                    "--max-position-embeddings 64 --micro-batch-size 1 $MORE\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"depends on '\$LAYERS', which is not set .*--set"):
        nest.read(path)
    assert nest.read(path, variables={"LAYERS": "6"}).model.layers == 6


@pytest.mark.parametrize("test", [
    "[ $NODES -gt 1 ]", "[ \"$NODES\" -gt 1 ]", "[[ $NODES -gt 1 ]]", "((NODES > 1))",
    "test $NODES -gt 1"])
def test_a_condition_without_its_variable_is_named(test: str, tmp_path: Path) -> None:
    """A value of the variable that it decides is a way out too."""
    path = tmp_path / "run.sh"
    path.write_text(f"N=1\nif {test}; then N=4; fi\ntorchrun --nproc_per_node 8 pretrain_gpt.py "
                    f"--num-layers $N {REST}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: --num-layers depends on 'if .*NODES"):
        nest.read(path)
    assert nest.read(path, variables={"N": "6"}).model.layers == 6
    if "((" not in test:
        assert nest.read(path, variables={"NODES": "2"}).model.layers == 4
        assert nest.read(path, variables={"NODES": "1"}).model.layers == 1


@pytest.mark.parametrize("text", [
    "if x; then\n{0} 1\nfi\n{0} 2", "x && {0} 1 || {0} 2", "for n in 1 2; do {0} $n; done",
    "f() {{ {0} $1; }}\nf 1\nf 2", "case $(x) in a) {0} 1;; *) {0} 2;; esac"])
def test_of_several_commands_none_is_chosen(text: str, tmp_path: Path) -> None:
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {REST} --num-layers"
    with pytest.raises(InputError, match=r"(several commands train a model \(lines .*; allowed|"
                                         r"depends on).*`nest capture -- bash run.sh`"):
        layers(tmp_path, text.format(start) + "\n")


@pytest.mark.parametrize("text", [
    "exit\n{0}", "f() {{ {0}; }}", "exec x\n{0}", "if [ 1 = 2 ]; then {0}; fi", "( {0}\n"])
def test_a_command_that_is_never_run_is_not_read(text: str, tmp_path: Path) -> None:
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {REST} --num-layers 4"
    with pytest.raises(InputError):
        layers(tmp_path, text.format(start) + "\n")


@pytest.mark.parametrize("guard", [
    'if [ -z "$DATA" ]; then echo usage; exit 1; fi', '[ -n "$DATA" ] || exit 1',
    'for n in DATA; do [ -n "${!n:-}" ] || missing+=" $n"; done\n'
    '[ -z "$missing" ] || { echo $missing; exit 2; }',
    'case "$DATA" in /*) ;; *) exit 1;; esac'])
def test_a_guard_asks_for_no_variable_of_no_cost(guard: str, tmp_path: Path) -> None:
    """A script that trains has what it checks for."""
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {REST} --num-layers 4 --data-path $DATA"
    assert layers(tmp_path, f"{guard}\n{start}\n") == 4


def test_a_captured_command_line_is_read(tmp_path: Path) -> None:
    """The way out that messages name: words of /proc/PID/cmdline, quoted again."""
    words = ["python", "-u", "pretrain_gpt.py", "--num-layers", "8", *REST.split(),
             "--pipeline-model-parallel-size", "2", "--pipeline-model-parallel-layout",
             "Et*3|t*5L", "--save", "a b$(c)"]
    path = tmp_path / "cmdline"
    done = subprocess.run(["xargs", "-0", "printf", "%q "], input="\0".join(words), text=True,
                          capture_output=True, check=True)
    path.write_text(done.stdout, encoding="utf-8")
    found = nest.read(path, devices=8)
    assert [stage.layers for stage in found.configuration.stages] == [(0, 4), (4, 10)]
    assert found.words[-2:] == ("--save", "a b$(c)")


@pytest.mark.parametrize("evil", [
    "$(touch {0})", "`touch {0}`", "eval 'touch {0}'", "touch {0}", "bash -c 'touch {0}'",
    "X=$(touch {0})", "trap 'touch {0}' EXIT", "<(touch {0})", "${{X:-$(touch {0})}}",
    "$((X[$(touch {0})]))", "source <(echo touch {0})", ": > {0}",
])
def test_nothing_is_executed(tmp_path: Path, evil: str) -> None:
    mark = tmp_path / "owned"
    line = evil.format(mark)
    path = tmp_path / "run.sh"
    for text in (f"{line}\npython {RUN} --lr {line}\n", f"A=({line})\npython {RUN} ${{A[@]}}\n",
                 f"if {line}; then python {RUN}; fi\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError):
            nest.read(path)
        assert not mark.exists()


@pytest.mark.parametrize("text", [
    "A=x\n" + "A=$A$A\n" * 60, "A=(x y)\n" + "A=(${A[@]} ${A[@]})\n" * 60,
    "echo " + "${A:-" * 500 + "}" * 500, "echo " + "$(" * 5000, "if " * 3000, "{ " * 3000 + "\n",
    "'", '"', "`", "A=(", "${", "$((" + "9" * 10**5 + "**" + "9" * 10**4 + "))",
    "echo $((" + "(" * 200 + "1" + ")" * 200 + "))", "\0", "\ue0000\ue001", "x" * (2**20 + 1),
    "if [ 1 = 1 ]; then\n" * 2000, "A=$((9**9**9))\necho $A", "((((", ")" * 1000, "fi fi fi",
    "<<EOF\n", "A+=", "=", "echo ${A[@]:1:2}", "\\", "|| && ;;",
])
def test_hostile_scripts_end_in_one_message(text: str, tmp_path: Path) -> None:
    path, before = tmp_path / "run.sh", time.process_time()
    path.write_text(f"{text}", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        nest.read(path)
    assert len(str(caught.value)) < 1000 and "run.sh" in str(caught.value)
    assert time.process_time() - before < 5.0


# ---------------------------------------------------------------- other scripts, other shells

REST = ("--hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 "
        "--micro-batch-size 1 --bf16")


def layers(folder: Path, text: str, **given: str) -> int:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return nest.read(path, variables=given).model.layers


@pytest.mark.parametrize("text", ["bash start.sh 4", "sbatch --nodes 2 start.sh", "./start.sh"])
def test_another_script_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run.sh: line 1: it starts another script, '.*start.sh'; "
                                         r"allowed: that script, or .*nest capture -- bash run.sh"):
        layers(tmp_path, f"{text}\n")


def test_no_sourced_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "set.sh").write_text("N=9\n", encoding="utf-8")
    text = "source ./set.sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers"
    with pytest.raises(InputError, match="line 1: .*'source ./set.sh'.*nest capture"):
        layers(tmp_path, f"{text} ${{N:-3}} {REST}\n")
    assert layers(tmp_path, f"{text} ${{N:-3}} {REST}\n", N="5") == 5
    text = text.replace("./set.sh", "env/bin/activate")
    assert layers(tmp_path, f"{text} 3 {REST}\n") == 3


@pytest.mark.parametrize("text", [
    "declare -n A=N\nA=4", "local -n A=N", "set -k", "shopt -s lastpipe", "enable -n echo",
    "shopt -s expand_aliases", "trap 'N=4' DEBUG", "trap 'N=4' USR1", "unset -n A"])
def test_switches_of_the_shell_are_refused(text: str, tmp_path: Path) -> None:
    """They change what all other lines mean."""
    with pytest.raises(InputError, match=r"run.sh: line 1: .* is not followed; .*nest capture"):
        layers(tmp_path, f"{text}\n{REST}\n")


@pytest.mark.parametrize("text", [
    "CMD=\"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 5 \\\n\n {0}\"\n"
    "export CMD\nsrun bash -c '$CMD --lr 1 2>&1'\n",
    "CMD=\"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 5 {0}\"\necho $CMD\n"
    "eval $CMD\n",
    "O='{0}'\nCMD=\"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers '5' $O\"\n"
    "eval ${{CMD}}\n",
    "srun sh -c \"torchrun --nproc_per_node 8 pretrain_gpt.py --rank \\$X --num-layers 5 {0}\"\n",
    "#SBATCH --gres=gpu:8 --nodes=1\nexport RANKS=$SLURM_NNODES\n"
    "srun bash -c \"RANK=\\$R python pretrain_gpt.py --save <a b> --num-layers 5 {0}\"\n",
])
def test_words_of_variables_are_not_lines(text: str, tmp_path: Path) -> None:
    """What another shell gets is split into words there, once more after eval."""
    found = text.format(REST).replace("--rank \\$X", "--local-rank \\$X")
    assert layers(tmp_path, found) == 5


def test_variables_of_further_arguments_are_empty_unless_set(tmp_path: Path) -> None:
    text = (f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 5 $A {REST} $B "
            "--moe-router-load-balancing-type aux_loss $C --data-path 0.5 $D --swiglu $E\n")
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    assert [word for word in nest.read(path).words if word.startswith("$")] == ["$D"]
    assert nest.read(path, variables={"E": "--num-layers 7"}).model.layers == 7


@pytest.mark.parametrize(("text", "wanted"), [
    ("unset A; prog ${A:-4}", "4"), ("unset A; : ${A:=4}; prog $A", "4"), ("prog ${A:-4}", "2"),
    ("source x; prog $A", "2"), ("A=$(x); prog $A", "2"), ("A=3; prog $A", "3"),
    ("unset A; source x; prog $A", "2"), ("for A in 3 4; do :; done; prog $A", "2")])
def test_what_is_given_stands_for_what_is_unknown(text: str, wanted: str) -> None:
    """And for nothing else: a variable that the script takes away is not there."""
    assert words(text, A="2")[1:] == [wanted]


@pytest.mark.parametrize(("test", "named"), [
    ('if [ "$MODE" = big ]; then N=7; else N=5; fi', ["MODE"]),
    ('N=5; if [[ -n $MODE ]]; then if [ "$OTHER" = 1 ]; then N=7; fi; fi', ["MODE"]),
    ('MODE=small; if [ "$MODE" = big ]; then N=7; else N=5; fi', []),
    ("N=${MODE:-5}", []),
])
def test_a_note_says_what_tests_take_as_empty(
    test: str, named: list[str], tmp_path: Path
) -> None:
    """Another value in the environment takes the other way."""
    path = tmp_path / "run.sh"
    path.write_text(f"{test}\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $N {REST}\n",
                    encoding="utf-8")
    found = nest.read(path)
    assert found.model.layers == 5
    assert [note.split(": ")[1] for note in found.notes if note.startswith("not set in")] == (
        [f"{', '.join(named)} (--set NAME=VALUE)"] if named else [])
    if named:
        again = nest.read(path, variables={"MODE": "big", "OTHER": "1"})
        assert again.model.layers == 7 and not any("not set in" in one for one in again.notes)


def test_arguments_that_a_script_loses_are_named(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 5 \\ \n  --swiglu {REST}\n"
    with pytest.raises(InputError, match="line 2: a command begins with '--swiglu'"):
        layers(tmp_path, text)


@pytest.mark.parametrize("text", [
    "printf '%s\\n' $1 \"${2:-b}\" ${3:-none} ${4:-none} $# \"$@\" \"$*\" $*",
    "A=$1\nshift\nB=${1:-none}\nshift 1\nprintf '%s\\n' $A $B ${2:-none} $# \"$@\"",
    "shift 2\nprintf '%s\\n' ${1:-none} x \"$@\" y",
    "A=(\"$@\")\nif [ $# -ge 2 ]; then B=many; else B=few; fi\nprintf '%s\\n' $B ${A[@]}",
])
@pytest.mark.parametrize("given", [(), ("4",), ("4", "b"), ("4", "b c", "d")])
def test_arguments_are_those_of_bash(text: str, given: tuple[str, ...]) -> None:
    if "shift" in text and len(given) < 2 or ("$1" in text and not given):
        return  # an error of bash, or a word that is asked for
    done = subprocess.run(["bash", "-c", text, "run.sh", *given], capture_output=True, text=True,
                          check=True)
    numbered = {str(n): word for n, word in enumerate(given, 1)}
    found = ShellScript(text, "run.sh", numbered)
    assert [found.plain(word) for word in found.commands[-1].words[2:]] == (
        done.stdout.split("\n")[:-1])


def test_arguments_that_are_not_given_are_asked_for(tmp_path: Path) -> None:
    """By their number, with what is shifted away."""
    path = tmp_path / "run.sh"
    path.write_text(
        "TP=$1\nshift\nMBS=$1\ntorchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers "
        "8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --bf16 "
        "--max-position-embeddings 1024 --micro-batch-size $MBS --global-batch-size 32 "
        "--tensor-model-parallel-size $TP\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"micro-batch-size depends on '\$2', which is an argument "
                                         r"of the script; give it by --set 2=VALUE"):
        nest.read(path, variables={"1": "4"})
    found = nest.read(path, variables={"1": "4", "2": "2"})
    stage = found.configuration.stages[0]
    assert (stage.tp, found.configuration.micro_batch // stage.dp_in) == (4, 2)


def test_arguments_behind_a_shift_that_may_be_run_are_not_guessed() -> None:
    script = ShellScript("if grep -q x y; then shift; fi\nprog $1", "run.sh", {"1": "a"})
    with pytest.raises(InputError, match="which the text alone does not decide"):
        script.need(script.commands[-1].words[1], "--x")
