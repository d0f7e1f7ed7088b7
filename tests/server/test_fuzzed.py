"""Requests made up from the served description never give a 5xx."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Server, serving

for module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(module)
schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, settings  # noqa: E402

from nest.server.schema import openapi  # noqa: E402

EXAMPLES = int(os.environ.get("NEST_FUZZED", "4"))
"""Requests to each address."""
PLACE = "#/components/schemas/"


def shallow(document: dict[str, Any]) -> dict[str, Any]:
    """The description without references inside others, which are objects of any fields there:
    requests made up of all take minutes."""
    named = document["components"]["schemas"]

    def cut(data: Any) -> Any:
        if isinstance(data, list):
            return [cut(one) for one in data]
        if not isinstance(data, dict):
            return data
        if str(data.get("$ref", "")).startswith(PLACE):
            return {"type": named[data["$ref"].removeprefix(PLACE)].get("type", "object")}
        return {key: cut(value) for key, value in data.items()}

    return {**document, "components": {
        **document["components"], "schemas": {name: cut(one) for name, one in named.items()}}}


SCHEMA = schemathesis.openapi.from_dict(shallow(openapi()))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--workers", "1", "--time-limit", "2", "--most-devices", "64", "--most-layers",
                 "32", "--grace", "0.1") as found:
        while found.get("/readyz").get("error") == "starting":
            time.sleep(0.1)
        yield found


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_gives_a_5xx(case: Any, server: Server) -> None:
    answer = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=120)
    assert answer.status_code < 500, answer.text[:2000]
    assert answer.status_code in (200, 202) or answer.json()["schema"] == "nest.error/1"
