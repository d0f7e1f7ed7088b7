"""The planner as a service over HTTP: ``nest serve`` (extra ``server``).

Read `service` first: what happens to a question, answers that are kept, and figures for
Prometheus. `work` is what worker processes do with it, `pool` keeps the workers; `submitted` are
questions that nobody waits for, `followed` tells how far a worker's search is.
`studies` runs sweeps on the same workers, each from a process of its own (`apart`). `app` are the
addresses, with their description in `schema`; `connections` bounds what comes before a request;
`settings` are the limits; `running` starts and ends it all.
Needs fastapi, uvicorn and prometheus_client. `agents`: the tools of ``nest mcp`` (extra ``mcp``).
"""
