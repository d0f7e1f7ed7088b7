"""Measured training runs, priced and compared.

>>> from nest.measured import validation
>>> report = validation.score(validation.price(validation.read()))  # doctest: +SKIP

`runs` reads the table of runs (`columns`, `cells`, `inferred`, `reasons` define the contents of a
row and why it is left out); `translate` turns a row into a question (`architecture`, `hardware`,
`software`, `degrees`); `pricing` prices it, `score` compares (by `statistics`), `ranges` says how
far measurements lie from prices, `document` writes the result.
"""

from nest.measured.validation.pricing import PricedRun, price
from nest.measured.validation.runs import Run, read
from nest.measured.validation.score import Report, Score, score
from nest.measured.validation.translate import RunQuestion, question

__all__ = ["PricedRun", "Report", "Run", "RunQuestion", "Score", "price", "question", "read",
           "score"]
