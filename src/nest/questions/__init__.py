"""Questions, answers and failures as documents that other programs write and read.

`question` is what is asked, and its answer; `network` reads its cluster; `failure` is an error that
comes back. Sweeps, streams and servers ask :meth:`nest.api.Planner.answer` these.
"""

from nest.questions.failure import Failure, failure
from nest.questions.question import Answer, Question, Search, read_question

__all__ = ["Answer", "Failure", "Question", "Search", "failure", "read_question"]
