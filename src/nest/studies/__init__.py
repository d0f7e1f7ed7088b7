"""Studies: many questions to the planner, their answers in one file, and what they show.

Read `study` first: what a person writes, with `axes` and their expressions. `points` lists the
points of a study, `questions` is what is asked at a point. `store` keeps answers; `engines` are
where questions run; `running` asks them. `results` has the
figures that are compared, the Pareto front, the best of each group and the effect of each axis;
`text`, `charts` and `page` show them; `sweep` does it all. `standing` says which of two questions
has more of everything, `proving` leaves out what that decides, `thresholds` finds least values and
curves, `design` the best cluster of a family.
"""
