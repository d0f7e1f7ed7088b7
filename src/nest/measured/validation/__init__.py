"""Measured training runs, priced and compared.

>>> from nest.measured import validation
>>> report = validation.score(validation.price(validation.read()))  # doctest: +SKIP

`runs` reads the table of runs (`cells` defines its columns and words, after tables.yaml);
`translate` turns a row into a question (with `hardware`, `degrees`); `pricing` prices it, `score`
compares, says how far measurements lie from prices, and writes the result; `ranges` makes the table
of evidence of priced runs.
"""

from nest.measured.validation.pricing import PricedRun, price
from nest.measured.validation.runs import Run, read
from nest.measured.validation.score import Report, Score, score
from nest.measured.validation.translate import RunQuestion, question

__all__ = ["PricedRun", "Report", "Run", "RunQuestion", "Score", "price", "question", "read",
           "score"]
