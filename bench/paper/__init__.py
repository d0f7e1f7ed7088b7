"""The published evaluation of NEST, repeated (docs/evaluation.md): python bench/published.py.

`questions` has the questions and `published` the published answers; `answers` asks every planner
and stores the plans; `results` compares them, `tables` and `charts` show them.
"""
