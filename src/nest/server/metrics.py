"""Figures of a server for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nest.server.settings import need

if TYPE_CHECKING:
    from nest.server.answers import ReplyCache
    from nest.server.pool import Pool
    from nest.server.studies import Studies

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the histogram of response times."""


class Metrics:
    """Counters of requests, and gauges of what the server holds.

    Parameters
    ----------
    pool, answers, studies : what the gauges look at.
    """

    def __init__(self, pool: Pool, answers: ReplyCache, studies: Studies) -> None:
        client = need("prometheus_client")
        self.registry = client.CollectorRegistry()
        make = {"registry": self.registry}
        self.requests = client.Counter(
            "nest_requests", "Requests by address and status.", ("path", "status"), **make)
        self.seconds = client.Histogram(
            "nest_request_seconds", "Seconds from request to response.", ("path",),
            buckets=SECONDS, **make)
        self.cached = client.Counter(
            "nest_cached", "Requests that needed no search: the same request, the same question, "
            "or one being asked.", ("what",), **make)
        for name, text, look in (
            ("nest_workers", "Processes that plan.", lambda: len(pool.workers)),
            ("nest_waiting", "Questions that wait for a worker.", lambda: pool.waiting),
            ("nest_running", "Questions that workers work on.", lambda: pool.running),
            ("nest_worker_deaths", "Workers that ended over a question.", lambda: pool.deaths),
            ("nest_answers", "Answers kept in memory.", lambda: len(answers)),
            ("nest_answers_bytes", "Bytes of these.", lambda: answers.held),
            ("nest_sweeps", "Sweeps that run.", lambda: studies.running),
        ):
            client.Gauge(name, text, **make).set_function(look)

    def text(self) -> bytes:
        """All figures in the text format."""
        found: bytes = need("prometheus_client").generate_latest(self.registry)
        return found
