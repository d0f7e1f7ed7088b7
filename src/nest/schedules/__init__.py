"""Pipeline schedules, one entry each in `registry`: all that the rest of NEST knows of them.

Nothing is imported here but what Python has, so that ``evaluate`` needs no compiler, and the
kernels compile the same functions. What these index are lists and tuples in Python, and rows of
arrays where they are compiled.

`traits` is what every entry has, `closed` and `path` the two kinds of them: a step in closed form
(`one_f_one_b`, `gpipe`), or the longest path through an order of passes (`passes`), which a
function of `orders` writes, or the rule of `controlled`. `stage` and `chunk` are what a form takes
of a stage and of consecutive layers. Read `one_f_one_b` first, then `passes` and `orders`.

Where to find: warm-up, drain and bubble of 1F1B in `one_f_one_b`; those of any other schedule
follow from its order in `passes`; where chunks lie in the model: `position` in `registry`.
"""
