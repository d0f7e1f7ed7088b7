"""Ask a server of ``nest serve`` from Python: the standard library is enough.

>>> from nest.client import Client
>>> client = Client("http://localhost:8316")
>>> plan = client.plan("llama3-8b", {"base": "dgx-h100", "devices": 64},
...                    {"global_batch": 512, "seq_len": 4096})  # doctest: +SKIP
"""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from nest.errors import InfeasibleError, InputError, LimitError, NestError, UnsupportedError
from nest.evaluation.plan_file import load_plan
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, Configuration, Description, Job, Model, Profile, SearchSpace
from nest.inputs.space import Preference
from nest.replanning.replan import Replan
from nest.units import shorten

Data = Mapping[str, Any]


class ServerError(NestError):
    """The server refused or failed for a reason of its own: no token, too busy, a defect.

    Parameters
    ----------
    message : what it said.
    status : HTTP status; 0: there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.status))


class Client:
    """Asks a server.

    Parameters
    ----------
    url : such as ``http://localhost:8316``.
    token : that the server asks for.
    timeout : seconds to wait for an answer.
    patience : seconds in which a question is asked again where the server is busy, ends or does not
        answer.

    Raises
    ------
    InputError : the url is none.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 300.0,
                 patience: float = 60.0) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            parts, self._host = urlsplit(""), ""
        if parts.scheme not in ("http", "https") or not self._host:
            raise InputError(f"url: got {shorten(url)}; allowed: http://HOST:PORT")
        self._path = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        self._token, self._timeout, self._patience = token, timeout, patience

    # ------------------------------------------------------------ questions

    def plan(self, model: Model | Profile | Data | str, cluster: Cluster | Data | str,
             job: Job | Data, space: SearchSpace | Data | None = None, *, top: int = 1,
             near_batches: bool = False, prefer: Preference = "fastest",
             **search: Any) -> Plan:
        """The fastest plan, as :func:`nest.plan` finds it.

        Parameters
        ----------
        model, cluster, job, space : descriptions, their data, or names of the server's catalog.
        search : ``beyond_stack``, ``time_limit``, ``reorder``, ``fillings``.

        Raises
        ------
        InputError, InfeasibleError, LimitError : as of :func:`nest.plan`.
        ServerError : the server refused.
        """
        return self.ask({**_question(model, cluster, job, space), "search": search, "top": top,
                         "near_batches": near_batches, "prefer": prefer})

    def ask(self, question: Description | Data) -> Plan:
        """The plan of a question document (`nest schema question`)."""
        return self._plan("/v1/plan", _plain(question))

    def evaluate(self, model: Model | Profile | Data | str, cluster: Cluster | Data | str,
                 job: Job | Data, configuration: Configuration | Data) -> Plan:
        """The price of a configuration, as :func:`nest.evaluate` gives it."""
        asked = _question(model, cluster, job, None)
        return self._plan("/v1/evaluate", {**asked, "configuration": _plain(configuration)})

    def compare(self, model: Model | Profile | Data | str, cluster: Cluster | Data | str,
                job: Job | Data, space: SearchSpace | Data | None = None,
                planners: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """What several planners find, an entry each as ``nest compare --json`` has them."""
        asked = _question(model, cluster, job, space)
        if planners is not None:
            asked["planners"] = [*planners]
        found: list[dict[str, Any]] = self._json("POST", "/v1/compare", asked)["planners"]
        return found

    def replan(self, plan: Plan | Data, without: Sequence[str],
               space: SearchSpace | Data | None = None, *,
               cluster: Cluster | Data | str | None = None, beyond_stack: bool = False) -> Replan:
        """The next plan after a loss, as :func:`nest.replan` finds it."""
        asked = {"plan": json.loads(plan.to_json()) if isinstance(plan, Plan) else plan,
                 "without": [*without], "space": _plain(space or {}),
                 "cluster": _plain(cluster), "beyond_stack": beyond_stack}
        return Replan.parse(self._json("POST", "/v1/replan", asked), "answer")

    def batch(self, questions: Sequence[Description | Data], to: str = "plan"
              ) -> list[dict[str, Any]]:
        """Answers and errors to many questions in one request, as documents in their order.

        Parameters
        ----------
        questions : at most 1,000, each as the address takes it.
        to : what is asked: plan, evaluate, compare or replan.
        """
        asked = {"to": to, "questions": [_plain(one) for one in questions]}
        found: list[dict[str, Any]] = self._json("POST", "/v1/batch", asked)["answers"]
        return found

    def submit(self, question: Description | Data, to: str = "plan") -> Pending:
        """Ask a question and come back for its answer."""
        found = self._json("POST", "/v1/questions", {"to": to, "question": _plain(question)})
        return Pending(self, found["id"])

    def catalog(self) -> dict[str, list[str]]:
        """Names that questions may use."""
        found: dict[str, list[str]] = self._json("GET", "/v1/catalog")
        return found

    def _plan(self, path: str, asked: Data) -> Plan:
        return load_plan(self._json("POST", path, asked)["plan"])

    # ------------------------------------------------------------ sweeps

    def sweep(self, study: Data, progress: Callable[[Data], bool | None] | None = None
              ) -> list[dict[str, Any]]:
        """All points of a study with their answers, as ``points.json`` has them.

        Parameters
        ----------
        study : its data; names of models and clusters are those of the server's catalog.
        progress : told the state each time it changes; returning False cancels the sweep, whose
            points so far are returned.

        Raises
        ------
        InputError : a bad study.
        ServerError : the sweep failed, or the server refused.
        """
        state = self._json("POST", "/v1/sweeps", _plain(study))
        place = f"/v1/sweeps/{state['id']}"
        for state in self._events(place):
            if progress is not None and progress(state) is False:
                self._json("DELETE", place)
        if state["state"] == "failed":
            raise ServerError(f"the sweep failed: {state['message']}")
        found: list[dict[str, Any]] = self._json("GET", f"{place}/points")["rows"]
        return found

    def _events(self, place: str) -> Iterator[dict[str, Any]]:
        """States of a sweep until it is over; where the connection ends, it is made again."""
        last = None
        while True:
            state = self._json("GET", place)
            if state != last:
                yield state
            last = state
            if state["state"] not in ("running", "cancelling"):
                return
            try:
                with closing(self._connection()) as connection:
                    connection.request("GET", f"{self._path}{place}/events",
                                       headers=self._headers())
                    answer = connection.getresponse()
                    for line in answer if answer.status == 200 else ():
                        if line.startswith(b"data: "):
                            last = json.loads(line[6:])
                            yield last
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(1.0)

    # ------------------------------------------------------------ requests

    def _connection(self) -> http.client.HTTPConnection:
        made = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return made(self._host, self._port, timeout=self._timeout)

    def _headers(self) -> dict[str, str]:
        found = {"Content-Type": "application/json"}
        return found if self._token is None else {
            **found, "Authorization": f"Bearer {self._token}"}

    def _json(self, method: str, path: str, data: Data | None = None) -> Any:
        """The answer to a request, asked again while the server is busy or does not answer."""
        body = None if data is None else json.dumps(data).encode()
        until = time.monotonic() + self._patience
        while True:
            wait, status, found = 1.0, 0, {"message": "", "error": ""}
            try:
                with closing(self._connection()) as connection:
                    connection.request(method, self._path + path, body, self._headers())
                    answer = connection.getresponse()
                    status, text = answer.status, answer.read()
                    wait = float(answer.headers.get("Retry-After") or wait)
                found = json.loads(text)
            except (OSError, http.client.HTTPException) as error:
                found["message"] = f"{self._host}: no answer ({error or type(error).__name__})"
            except ValueError:
                found["message"] = f"{self._host}: got no JSON with status {status}"
            if 200 <= status < 300:
                return found
            if status not in (0, 429, 503) or time.monotonic() + wait > until:
                raise _error(found, status)
            time.sleep(wait)


class Pending:
    """A question that a server is answering.

    Parameters
    ----------
    client : that asked it.
    id : of the question, with which another process may ask for its answer.
    """

    def __init__(self, client: Client, id: str) -> None:
        self._client, self.id = client, id

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Its answer as a document.

        Parameters
        ----------
        timeout : seconds to wait for it; None: any.

        Raises
        ------
        InputError, InfeasibleError, LimitError : as of :func:`nest.plan`.
        TimeoutError : there is no answer yet.
        ServerError : it was cancelled, or the server does not know it any more.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            wait = max(0.0, min(30.0, until - time.monotonic()))
            state = self._client._json("GET", f"/v1/questions/{self.id}?wait={wait:.3f}")
            if state["state"] == "cancelled":
                raise ServerError(f"question {self.id} was cancelled")
            if state["state"] == "done":
                answer: dict[str, Any] = state["answer"]
                if state["status"] != 200:
                    raise _error(answer, state["status"])
                return answer
            if time.monotonic() >= until:
                raise TimeoutError(f"question {self.id}: no answer in {timeout:g} s")

    def done(self) -> bool:
        """Whether it is over."""
        found: str = self._client._json("GET", f"/v1/questions/{self.id}")["state"]
        return found != "running"

    def cancel(self) -> None:
        """Stop answering it."""
        self._client._json("DELETE", f"/v1/questions/{self.id}")


def _question(model: Any, cluster: Any, job: Any, space: Any) -> dict[str, Any]:
    """The data of a question, without how it is searched."""
    name = "profile" if isinstance(model, Profile) else "model"
    found = {name: _plain(model), "cluster": _plain(cluster), "job": _plain(job)}
    return found if space is None else {**found, "space": _plain(space)}


def _plain(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Description) else value


def _error(found: Any, status: int) -> NestError:
    """The exception of an error document."""
    data = found if isinstance(found, dict) else {}
    message = str(data.get("message", found))
    problems = tuple(map(str, data.get("problems") or (message,)))
    name = data.get("error")
    if name == "input" and status not in (401, 403, 404, 405, 413, 415):
        return InputError(message, problems)
    if name == "infeasible":
        return InfeasibleError(message, data.get("nearest"))
    if name == "unsupported":
        return UnsupportedError(message, problems)
    if name == "limit":
        return LimitError(message)
    return ServerError(message, status)
