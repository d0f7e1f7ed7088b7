"""Megatron-Core's text of a layout: read, checked, written."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import pytest
from descriptions import MODEL

from nest.errors import InputError
from nest.inputs import Model, load_model
from nest.model import Chain, build_chain
from nest.model.layouts import family, layout_cuts, layout_of

PUBLISHED = [
    ("llama3.1-405b", 8, "Et*3|(t*4|)*30t*3L", "Et*3|(t*4|)*30t*3L"),
    ("deepseek-v3", 4, "Et*4|(t*4|)*14tmL", "Et*4|(t*4|)*14tmL"),
    ("deepseek-v3", 4, "Et*3|(t*4|)*14t*2mL", "Et*3|(t*4|)*14ttmL"),
    ("deepseek-v3", 8, "Et*3|(tt|)*29,m|L", "Et*3|(tt|)*29m|L"),
]
"""Model, pp, the text of a recipe and the shortest one."""


def chain_of(layers: int, mtp: int = 0) -> Chain:
    return build_chain(Model.parse({**MODEL, "layers": layers, "mtp_layers": mtp}))


def unrolled(text: str) -> list[str]:
    """Letters of each chunk as Megatron-Core unrolls them: groups, then letters, in two passes."""
    plain = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        plain = re.sub(pattern, lambda found: found[1] * int(found[2]), plain)
    return plain.split("|")


@pytest.mark.parametrize(("name", "pp", "text", "shortest"), PUBLISHED)
def test_published_layouts(name: str, pp: int, text: str, shortest: str) -> None:
    chain = build_chain(load_model(name))
    cuts = layout_cuts(chain, text, pp)
    assert [end - first for first, end in pairwise(cuts)] == list(map(len, unrolled(text)))
    assert layout_of(chain, cuts, pp) == shortest
    assert list(cuts) in family(chain, pp, (len(cuts) - 1) // pp).tolist()


def test_texts_mean_what_they_were_written_from() -> None:
    rng = Random("layouts")
    for _ in range(600):
        pp, vpp, mtp = rng.randint(1, 5), rng.randint(1, 4), rng.choice((0, 0, 1, 2))
        chain = chain_of(rng.randint(1, 24), mtp)
        inner = sorted(rng.randint(1, len(chain) - 1) for _ in range(pp * vpp - 1))
        if rng.random() < 0.5:  # sizes that repeat
            size = rng.randint(1, 4)
            inner = [min(1 + n * size, len(chain) - 1) for n in range(pp * vpp - 1)]
        cuts = (0, *inner, len(chain))
        text = layout_of(chain, cuts, pp)
        if text is None:
            assert mtp, (cuts, pp, vpp)
            continue
        assert layout_cuts(chain, text, pp) == cuts
        letters = "E" + "t" * (len(chain) - mtp - 2) + "m" * mtp + "L"
        assert unrolled(text) == [letters[first:end] for first, end in pairwise(cuts)]
        assert len(text) == shortest(tuple(unrolled(text)), {})


def shortest(chunks: tuple[str, ...], known: dict[tuple[str, ...], int]) -> int:
    """Length of the shortest text whose groups are whole chunks, of all there are."""
    def runs(chunk: str) -> int:
        return sum(min(len(run[0]), 2 + len(str(len(run[0]))))
                   for run in re.finditer(r"(.)\1*", chunk))

    if chunks not in known:
        if len(chunks) == 1:
            return runs(chunks[0])
        found = runs(chunks[0]) + 1 + shortest(chunks[1:], known)
        for size in range(1, len(chunks)):
            for times in range(2, (len(chunks) - 1) // size + 1):
                if chunks[:size] * times == chunks[: size * times]:
                    group = sum(runs(chunk) + 1 for chunk in chunks[:size])
                    more = len(f"()*{times}") - 2 * (chunks[:size] == ("",))
                    found = min(found, group + more + shortest(chunks[size * times :], known))
        known[chunks] = found
    return known[chunks]


@pytest.mark.parametrize(("text", "said"), [
    ("Ett|t|tmL", "got 3 chunks; allowed: a multiple of pp 2"),
    ("Ett|tmL", "got 3 x t; allowed: 4, transformer layers of the model"),
    ("Ett|ttL", "got 0 x m; allowed: 1, multi-token prediction of the model"),
    ("tt|ttL", "got 0 x E; allowed: 1, the embedding of the model"),
    ("Ett|ttmLL", "got 2 x L; allowed: 1, the head of the model"),
    ("Ettm|ttmL", "got 2 x m; allowed: 1, multi-token prediction of the model"),
    ("|EttttmL", "chunk 0 (chunk 0 of stage 0) is empty; allowed: it begins with E"),
    ("EttttmL|", "chunk 1 (chunk 0 of stage 1) is empty; allowed: it ends with L"),
    ("tEttt|mL", "chunk 0 (chunk 0 of stage 0) is tEttt; allowed: it begins with E"),
    ("Etttm|tL", "chunk 0 (chunk 0 of stage 0) is Etttm; allowed: m behind all t"),
    ("Ettt|mtL", "chunk 1 (chunk 0 of stage 1) is mtL; allowed: m behind all t"),
    ("Et|ttt|m||L", "got 5 chunks; allowed: a multiple of pp 2"),
    ("Ettttm||||L|", "chunk 5 (chunk 2 of stage 1) is empty; allowed: it ends with L"),
    ("Et|tttm||L", "chunk 1 (chunk 0 of stage 1) is tttm; allowed: m in the last chunk of its"),
    ("Ettttm|||L", "chunk 0 (chunk 0 of stage 0) is Ettttm; allowed: m in the last chunk of its"),
    ("Et*4|xmL", "got 'xmL' at character 6 of 'Et*4|xmL'; allowed: E, t, m, L and |, each alone"),
    ("E((t|)*2t)*2mL", "got '((t|)*2t)*2mL' at character 2"), ("Et*|", "got '*|' at character 3"),
    ("(E", "got '(E' at character 1"), ("", "got ''; allowed: layers of all chunks"),
    ("t*999999|", "got more than 100000 letters"), ("(t*9)*999999", "got more than 100000"),
    ("(" + "t*99999" * 20_000 + ")*1", "got more than 100000"), ("((t)*2)*2", "got '((t)*2)*2' at"),
    ("t*0009999999", "got '9999' at"), ("E t", "got ' t' at character 2"),
])
def test_wrong_layouts(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        layout_cuts(chain_of(4, 1), text, 2)
    assert str(error.value).startswith(f"layout: {said}")
    assert len(error.value.problems) == 1


def test_all_m_lie_in_one_chunk() -> None:
    with pytest.raises(InputError, match=r"chunk 2 .* is tm; allowed: all 2 m in one chunk"):
        layout_cuts(chain_of(4, 2), "Et|tt|tm|mL", 4)
    assert layout_of(chain_of(4, 2), (0, 2, 4, 6, 8), 4) is None


def test_models_of_other_layers_have_no_layout() -> None:
    chain = build_chain(load_model("t5-11b"))
    assert layout_of(chain, (0, 5, len(chain)), 2) is None
    with pytest.raises(InputError, match="layout: t5-11b has other layers than the embedding, "):
        layout_cuts(chain, "EttttL", 1)
