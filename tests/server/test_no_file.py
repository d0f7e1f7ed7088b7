"""No request has a file opened or looked for, at any address, by any field: seen by an audit hook.

The child process watches everything that is opened, listed or looked up, and reads and answers
requests with references to files, also one inside another, in the place of every value.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nest

CHILD = r'''
import copy, json, os, sys
sys.path.insert(0, sys.argv[1])
import test_work as work
from nest import evaluate
from nest.inputs import load_configuration, load_model
from nest.errors import InputError
from nest.questions import read_question
from nest.server.work import ReadStudy, answer, read, read_study
from nest.studies.questions import failed
from nest.studies.study import Study
from nest.studies.sweep import stored, sweep

question = read_question(work.QUESTION)[0]
PLAN = json.loads(evaluate(question.subject, question.cluster, question.job,
                           load_configuration(work.WAY)).to_json())
FULL = question.as_dict() | {"profile": None}
BARE = {"schema": PLAN["schema"], "inputs": PLAN["inputs"]}
SMALL = {**work.WHOLE, "replan": {"plan": BARE, "without": ["gpu7"], "cluster": "dgx-a100"},
         "page": {"plan": BARE, "other": BARE, "names": ["A", "B"], "whole": True},
         "export": {"plan": BARE, "target": "megatron"}}
LARGE = {"plan": FULL, "replan": {"plan": PLAN, "without": ["node0/gpu7"]}, "evaluate": PLAN}
AXES = {"model": ["bert-large", {"base": "bert-large"}], "cluster": {"values": ["dgx-a100"]},
        "job.stack": ["megatron-core"], "cluster.device": ["h100-sxm", {"base": "h100-sxm"}],
        "which": {"a": {"model": "bert-large", "cluster": {"base": "dgx-a100", "devices": 8}}}}
STUDIES = [work.STUDY | {"axes": {name: values}, "constraints": ["devices > 1"],
                         "prices": {"device_hour": 2.0}} for name, values in AXES.items()]
STUDIES.append(work.STUDY | {"model": {"base": {"base": "bert-large"}},
                             "cluster": {"base": {"base": "dgx-a100"}, "devices": 8}})
HERE, STEP = os.getcwd(), int(os.environ.get("NEST_FORMS_STEP", "6"))
NAMES = ("bait.yaml", "bait.json", "bait", "bait.graphml", "bait.csv", "bait-folder")
FORMS = []
for name in NAMES:
    for text in (name, f"{HERE}/{name}", f"./{name}"):
        FORMS += [text, {"base": text}, {"base": {"base": text}},
                  {"base": {"base": {"base": text}}}]
FORMS += ["mixed:8xbait.yaml", {"base": "mixed:2x8xbait.json"},
          f"fat-tree:k=4,device={HERE}/bait.yaml",
          "fat-tree:k=4,device=bait.json,bandwidth=400 Gb/s",
          "data-centres:centres=2,fabric=[mixed:8xbait.yaml]", [f"{HERE}/bait.yaml"],
          f"file://{HERE}/bait.json", {"device": {"base": f"{HERE}/bait.yaml"}},
          {"$ref": "bait.json"}, {"file": "bait.json"}, {"levels": "bait.yaml"}, "bait.yaml\x00"]
seen, watched = [], [False]


def note(event, arguments):
    if watched[0] and event != "compile" and "bait" in repr(arguments):
        seen.append((event, repr(arguments)))


sys.addaudithook(note)
for name in ("stat", "lstat", "access"):
    def looked(path, *others, _old=getattr(os, name), _name=name, **more):
        note(_name, (path,))
        return _old(path, *others, **more)
    setattr(os, name, looked)


def places(data, path=()):
    if path:
        yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*path, key))
    elif isinstance(data, list) and data:
        yield from places(data[0], (*path, 0))


def put(data, path, value):
    data = copy.deepcopy(data)
    inner = data
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return data


def asked(address, data):
    body = json.dumps(data).encode()
    if address == "sweeps":
        found = read_study(body, work.LIMITS)
        if isinstance(found, ReadStudy):
            folder = "/".join((sys.argv[2], found.digest[:8]))
            sweep(Study.parse(json.loads(found.text)), folder, engine="inline",
                  question=lambda question: failed("not asked"))
            stored(folder)
        return
    found = read(address, body, work.LIMITS)
    if address in ("evaluate", "replan"):
        answer(address, body, work.LIMITS)


def searched(*given, **options):
    raise InputError("nothing is searched here")


import nest.replanning.replan
nest.replanning.replan.fastest = searched
for address, data in [*SMALL.items(), *LARGE.items(), *(("sweeps", one) for one in STUDIES)]:
    asked(address, data)  # what it imports and keeps is there
watched[0] = True
try:
    load_model("bait.yaml")
except InputError:
    pass
assert {event for event, _ in seen} >= {"open", "stat"}, seen
seen.clear()
count = 0
documents = [(address, data, FORMS) for address, data in SMALL.items()]
documents += [("sweeps", data, FORMS) for data in STUDIES]
documents += [(address, data, None) for address, data in LARGE.items()]
for address, data, forms in documents:
    for number, path in enumerate(places(data)):
        if forms and path[0] == "plan" and len(path) > 3:
            continue  # of the inputs; the large documents have each of their fields
        for form in forms[number % STEP::STEP] if forms else [FORMS[number % len(FORMS)]]:
            asked(address, put(data, path, form))
            count += 1
            if seen:
                sys.exit(f"{address} {path} {form!r}: {seen[:3]}")
print(count)
'''


def test_no_request_opens_or_looks_for_a_file(tmp_path: Path) -> None:
    here, kept = tmp_path / "here", tmp_path / "kept"
    for folder in (here, kept, here / "bait-folder"):
        folder.mkdir()
    for name in ("bait.yaml", "bait.json", "bait", "bait.graphml", "bait.csv",
                 "bait-folder/config.json"):
        (here / name).write_text(json.dumps({"base": "bert-large", "secret": "hunter2"}))
    source = str(Path(nest.__file__).parents[1])
    tests = str(Path(__file__).parent)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, tests, str(kept)], cwd=here, text=True, timeout=500,
        capture_output=True, env={**os.environ, "PYTHONPATH": source, "NEST_INSTANCES": "1"})
    assert child.returncode == 0, child.stderr[-2000:]
    assert int(child.stdout) > 500  # 2,600 with NEST_FORMS_STEP=1: each form in each place
