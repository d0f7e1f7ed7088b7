"""Published evaluations, repeated; and a set of planning problems for all planners.

`paper` has the questions and `published` the published answers; `asking` asks every planner and
`answers` stores their plans on disk; `results` reads them, `tables`, `charts` and `text` show
them.

`instance` has the problems of `instances.yaml` as documents, `solving` their best configurations;
`submission` what a planner hands in, `planned` what those of `nest compare` hand in, `working` the
processes for both; `score` prices it, `untried` says what searches leave out, `score_document` and
`instances_text` show that.
"""
