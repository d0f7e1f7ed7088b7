"""Requests made up from the served description never give a 5xx."""

from __future__ import annotations

import os

import pytest

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("prometheus_client")
from hypothesis import HealthCheck, settings  # noqa: E402

from nest.server.app import application  # noqa: E402
from nest.server.settings import Settings  # noqa: E402

EXAMPLES = int(os.environ.get("NEST_FUZZED", "30"))
"""Requests to each address."""
APP = application(Settings(workers=1, seconds=5.0, devices=64, layers=32, grace=0.1, sweeps=2))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP, headers={"host": "localhost"})


@SCHEMA.exclude(path_regex="/events$").parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_gives_a_5xx(case) -> None:
    response = case.call(headers={"host": "localhost"})
    assert response.status_code < 500, response.text[:2000]
    assert response.status_code in (200, 202) or response.json()["schema"] == "nest.error/1"
