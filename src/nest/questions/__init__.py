"""Questions, answers and failures as documents that other programs write and read.

`question` is what is asked, with its `search`; `network` reads its cluster; `answer` and `failure`
are what comes back. Sweeps, streams and servers ask :meth:`nest.api.Planner.answer` these.
"""

from nest.questions.answer import Answer
from nest.questions.failure import Failure, failure
from nest.questions.question import Question, read_question
from nest.questions.search import Search

__all__ = ["Answer", "Failure", "Question", "Search", "failure", "read_question"]
