"""Step times as plain functions of numbers, which evaluation runs and the kernels compile.

Nothing is imported here but what Python has, so that ``evaluate`` needs no compiler. What the
functions index are lists and tuples in Python, and rows of arrays where they are compiled.

`stage` and `chunk` are what a form takes of a stage and of consecutive layers. `one_f_one_b` and
`gpipe` are closed forms of their schedules. `passes` is the longest path through any order of
passes, and `orders` writes the orders of the published schedules. Read `one_f_one_b` first.

Where to find: warm-up, drain and bubble of 1F1B in `one_f_one_b`; those of any other schedule
follow from its order in `passes`.
"""
