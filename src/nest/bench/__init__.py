"""Published evaluations, repeated.

`paper` has the questions and `published` the published answers; `asking` asks every planner and
`answers` stores their plans on disk; `results` reads them, `tables`, `charts` and `text` show
them.
"""
