"""Whatever a file holds, only InputError escapes."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import yaml
from descriptions import CONFIGS, LOADERS, TEMPLATE, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nest.errors import InputError
from nest.inputs import (
    Cluster,
    Job,
    Model,
    catalog,
    load_cluster,
    load_device,
    load_model,
    load_stack,
)

QUICK = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def only_input_errors(path: Path) -> None:
    for load, _ in LOADERS.values():
        try:
            load(path)
        except InputError as error:
            assert str(error).strip()


@QUICK
@given(content=st.binary(max_size=300), suffix=st.sampled_from(["yaml", "json", "toml", "csv"]))
def test_random_bytes(content, suffix, tmp_path):
    only_input_errors(put(tmp_path, content, f"f.{suffix}"))


@QUICK
@given(content=st.text(max_size=200), suffix=st.sampled_from(["yaml", "json", "toml", "csv"]))
def test_random_text(content, suffix, tmp_path):
    only_input_errors(put(tmp_path, content.encode("utf-8", "replace"), f"f.{suffix}"))


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.just("n"),
    st.integers(min_value=10**18, max_value=10**30),
    st.sampled_from(["1 GiB", "5 us", "1..4", "8"]),
)
TREE = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@QUICK
@given(
    data=st.dictionaries(
        st.sampled_from(
            sorted(
                {
                    *Model.model_fields,
                    *Cluster.model_fields,
                    *Job.model_fields,
                    "base",
                    "model_type",
                    "stages",
                    "levels",
                    "schema",
                    "architectures",
                }
            )
        ),
        TREE,
        max_size=8,
    )
)
def test_random_structures(data, tmp_path):
    only_input_errors(put(tmp_path, data))
    for load, _ in LOADERS.values():
        try:
            load(data)
        except InputError as error:
            assert str(error).strip()


def leaves(data: object, path: tuple = ()) -> list[tuple]:
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    found = [path] if path else []
    for key, value in items:
        found += leaves(value, (*path, key))
    return found


@pytest.mark.parametrize("kind", [*LOADERS, "template", *(c["model_type"] for c in CONFIGS)])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), value=TREE)
def test_valid_descriptions_with_one_thing_changed(kind, seed, value):
    sources = {**LOADERS, "template": (load_cluster, TEMPLATE)}
    sources |= {config["model_type"]: (load_model, config) for config in CONFIGS}
    load, valid = sources[kind]
    data = copy.deepcopy(valid)
    draw = random.Random(seed)
    *parents, last = draw.choice(leaves(data))
    place = data
    for part in parents:
        place = place[part]
    change = draw.choice(["set", "delete", "rename"])
    if change == "set" or isinstance(place, list):
        place[last] = value
    elif change == "delete":
        del place[last]
    else:
        place[f"{last}_"] = place.pop(last)
    try:
        load(data)
    except InputError as error:
        assert str(error).strip()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from(catalog.names("models")))
def test_valid_files_with_bytes_changed(seed, name, tmp_path_factory):
    text = bytearray(yaml.safe_dump(catalog.load("models", name)).encode())
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(text))
        text[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
    path = put(tmp_path_factory.mktemp("bytes"), bytes(text))
    try:
        model = load_model(path)
        assert model.parameters() > 0
    except InputError as error:
        assert str(path) in str(error)


@QUICK
@given(name=st.text(max_size=60))
def test_random_names(name):
    for load in (load_model, load_cluster, load_device, load_stack):
        try:
            load(name)
        except InputError as error:
            assert str(error).strip()
