"""Published evaluations, repeated; and a set of planning problems for all planners.

`paper` has the questions and `published` the published answers; `asking` asks every planner and
`answers` stores their plans on disk; `results` reads them, `tables`, `charts` and `text` show
them.

`instance` writes the problems of `instances.yaml` as documents, `solving` finds their best
configurations; `submission` is the file that a planner submits, `planned` makes those of the
planners of `nest compare`, `working` runs the processes of both; `score` prices a submission,
`untried` lists what searches leave out, `score_document` and `instances_text` show the score.
"""
