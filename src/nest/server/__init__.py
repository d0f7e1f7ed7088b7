"""The planner as a service over HTTP: ``nest serve`` (extra ``server``).

Read `service` first: what happens to a question. `work` is what worker processes do with it,
`pool` keeps the workers, `answers` the answers. `studies` runs sweeps on the same workers. `app`
are the addresses, with their description in `schema` and figures in `metrics`; `requests` are
documents besides questions, `settings` the limits; `running` starts and ends it all. Needs fastapi,
uvicorn and prometheus_client.
"""
