"""Published evaluations asked again.

`paper` has the questions and `published` the published answers; `asking` asks every planner and
`answers` keeps what they say on disk; `results` reads them, `tables`, `charts` and `text` show
them.
"""
