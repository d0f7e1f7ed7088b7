"""Studies: many questions to the planner, their answers in one file, and what they show.

Read `study` first: what a person writes, with `axes`, `prices` (a price list: money and power) and
`expressions`; `loading` reads it. `points` lists the points of a study (`fields` sets one field of
plain data, `questions` is what is asked at a point, with the `version`). `store` keeps answers,
with `owners` for processes that work at once; `engines` are where questions run, in `bundles` where
workers are many; `running` asks them. `objectives` has the figures that are compared,
`results` the Pareto front, the best of each group and the effect of each axis; `tables` (CSV,
Parquet), `text` and `charts` show them; `sweep` does it all.
"""
