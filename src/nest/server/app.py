"""The addresses of a server, as a FastAPI application."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from nest import __version__
from nest.errors import InputError
from nest.frameworks.registry import TARGETS
from nest.frameworks.targets import TRACES
from nest.inputs import catalog
from nest.inputs.space import Precision
from nest.report.catalog_text import catalog_row
from nest.report.web.pages import explorer_page
from nest.server.schema import TEXTS, openapi
from nest.server.service import AGAIN, Service, handed_back, starting, told
from nest.server.settings import BODY_SECONDS, HEADER, ServerSettings
from nest.server.studies import RunningStudy
from nest.server.submitted import READING, batch, seconds_of
from nest.server.work import ENDPOINTS, Reply, parts, refusal
from nest.units import shorten

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
TABLES = {"json": "application/json", "csv": "text/csv", "page": "application/json"}
ONCE = b"host", b"authorization", b"content-type"
"""Headers that a request has once at the most (RFC 9110, section 5.3)."""
LOCAL = ("localhost", "127.0.0.1", "[::1]")
OPEN = ("/healthz", "/readyz")
"""Addresses that no token is needed for."""
EXPLORER = "/"
"""Address of the explorer, a page that asks for the token itself."""


CLOSED = (401, 403, 408, 413, 415, 431)
"""Status of requests whose body is not read, or not to its end."""


class UnreadBody(Exception):
    """A body that is not read to its end, with the reply that says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


def application(settings: ServerSettings) -> FastAPI:
    """The application; ``state.service`` is its :class:`nest.server.service.Service`.

    Parameters
    ----------
    settings : its limits.
    """
    service = Service(settings)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        if not service.ending:
            await service.end()

    app = FastAPI(title="NEST", version=__version__, lifespan=life, docs_url=None, redoc_url=None,
                  openapi_url=None, redirect_slashes=False)
    app.state.service = service
    for endpoint in ENDPOINTS:
        app.add_route(f"/v1/{endpoint}", partial(_ask, service, endpoint), methods=["POST"])
    routes: tuple[tuple[str, str, Any], ...] = (
        ("POST", "/v1/batch", _batch), ("POST", "/v1/questions", _submit),
        ("GET", "/v1/questions/{name}", _look), ("DELETE", "/v1/questions/{name}", _give_up),
        ("GET", "/v1/questions/{name}/events", _follow),
        ("POST", "/v1/sweeps", _start), ("GET", "/v1/sweeps", _list),
        ("GET", "/v1/sweeps/{name}", _state), ("DELETE", "/v1/sweeps/{name}", _cancel),
        ("GET", "/v1/sweeps/{name}/points", _points),
        ("GET", "/v1/sweeps/{name}/events", _events), ("GET", "/v1/catalog", _catalog),
        ("GET", "/v1/catalog/{section}/{name}", _entry), ("GET", EXPLORER, _explorer),
        ("GET", "/openapi.json", _openapi), ("GET", "/healthz", _health),
        ("GET", "/readyz", _ready), ("GET", "/metrics", _metrics))
    for method, path, handler in routes:
        app.add_route(path, partial(handler, service), methods=[method])
    app.add_exception_handler(HTTPException, _no_address)
    app.add_exception_handler(ClientDisconnect, _hung_up)
    app.add_exception_handler(UnreadBody, _unread)
    app.add_middleware(Guard, service=service)
    return app


# ---------------------------------------------------------------- every request


class Guard:
    """Refuses requests without the token, from web pages, or too large; counts all.

    Parameters
    ----------
    app : what answers the others.
    service : whose settings count.
    """

    def __init__(self, app: Any, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), [500]

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            refused = self._refused(scope)
            if refused is not None:
                await _response(refused)(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
        except Exception as error:
            if status != [500]:  # its answer has begun
                raise
            logging.getLogger("nest.server").error("%s", error, exc_info=True)
            await _response(refusal(error))(scope, receive, noted)
        finally:
            metrics, path = self._service.metrics, _template(scope)
            metrics.requests.labels(path, str(status[0])).inc()
            metrics.seconds.labels(path).observe(time.monotonic() - started)

    def _refused(self, scope: Scope) -> Reply | None:
        """Why a request is refused before it is read; None: it is not."""
        settings, path = self._service.settings, scope["path"]
        headers = dict(scope["headers"])
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > HEADER:
            return told(431, "input", f"header: got {size} bytes; allowed: {HEADER}")
        for name in ONCE:  # which of several counts is not the same for all that read them
            if sum(each == name for each, _ in scope["headers"]) > 1:
                return told(400, "input", f"header: {name.decode()} stands there more than once; "
                            "allowed: once")
        if path in OPEN:
            return None
        if settings.token is not None and path == EXPLORER:
            return None
        if settings.token is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            right = hmac.compare_digest(given.strip(), settings.token.encode())
            if not (right and scheme.lower() == b"bearer"):
                return told(401, "token", "got no token or another; allowed: the header "
                            "Authorization: Bearer TOKEN")
        else:  # a web page must not reach it by a name of its own for this machine
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name not in LOCAL:
                return told(403, "host", f"host: got {shorten(host)}; allowed: "
                            f"{', '.join(LOCAL)}, or a server with a token")
        if self._service.ending:
            return handed_back()
        if scope["method"] == "POST" and headers.get(
                b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            return told(415, "input", "content-type: allowed: application/json")
        return None


def _template(scope: Scope) -> str:
    """The path of a request as its route has it, so that there are few."""
    if "endpoint" not in scope:
        return "other"
    names = {value: f"{{{name}}}" for name, value in scope.get("path_params", {}).items()}
    parts = scope["path"].split("/")
    return "/".join([*parts[:3], *(names.get(part, part) for part in parts[3:])])


def _response(reply: Reply) -> Response:
    headers = {}
    if reply.status in (429, 503):
        headers["Retry-After"] = str(AGAIN)
    if reply.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if reply.status in CLOSED:
        headers["Connection"] = "close"
    return Response(reply.body, reply.status, headers, "application/json")


async def _no_address(request: Request, error: Any) -> Response:
    """Another address or method, as a document like all errors."""
    reply = told(error.status_code, "input", f"{request.method} {shorten(request.url.path)}: "
                 f"{error.detail}; allowed: the addresses of /openapi.json")
    response = _response(reply)
    response.headers.update(error.headers or {})
    return response


async def _hung_up(request: Request, error: Any) -> Response:
    """A request that ended early is no defect; nobody reads this answer."""
    return _response(told(400, "input", "body: the connection ended before it was whole"))


async def _body(service: Service, request: Request) -> bytes:
    """The body of a request.

    Raises
    ------
    Unread : it has more bytes than allowed, or does not arrive in time.
    """
    most, parts, size = service.settings.body, [], 0
    given = request.headers.get("content-length", "0")
    if given.isdecimal() and (len(given) > 15 or int(given) > most):
        raise UnreadBody(_too_large(most))
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise UnreadBody(_too_large(most))
                parts.append(part)
    except TimeoutError:
        raise UnreadBody(told(408, "input",
                              f"body: {size} bytes came in {BODY_SECONDS:g} s; allowed: "
                          "all of it")) from None
    return b"".join(parts)


def _too_large(most: int) -> Reply:
    return told(413, "input", f"body: got more than {most} bytes; allowed: {most}")


async def _unread(request: Request, error: Any) -> Response:
    """A body that is too large or too slow."""
    return _response(error.reply)


# ---------------------------------------------------------------- questions


async def _ask(service: Service, endpoint: str, request: Request) -> Response:
    return _response(await service.ask(endpoint, await _body(service, request)))


async def _batch(service: Service, request: Request) -> Response:
    body = await _body(service, request)
    asked = await service.caught(
        partial(service.reader.run, seconds=READING), parts, body, True, asked=body)
    if isinstance(asked, Reply):
        return _response(asked)
    width = 2 * len(service.pool.workers)
    return StreamingResponse(batch(service.ask, asked, width), 200, None, "application/json")


async def _submit(service: Service, request: Request) -> Response:
    body = await _body(service, request)
    one = await service.caught(service.questions.submit, body, asked=body)
    if isinstance(one, Reply):
        return _response(one)
    return Response(one.document(), 202, {"Location": f"/v1/questions/{one.id}"},
                    "application/json")


async def _look(service: Service, request: Request) -> Response:
    given = request.query_params.get("wait", "0")
    seconds = seconds_of(given)
    if seconds is None:
        return _response(told(400, "input", f"wait: got {shorten(given)}; allowed: seconds, 0 or "
                              "more"))
    one = await service.questions.look(request.path_params["name"], seconds)
    return _none(request) if one is None else Response(
        one.document(), 200, None, "application/json")


async def _follow(service: Service, request: Request) -> Response:
    one = await service.questions.look(request.path_params["name"], 0.0)
    if one is None:
        return _none(request)
    return _stream(service.questions.events(one))


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, 200, {"Cache-Control": "no-store"}, TEXTS["events"])


async def _give_up(service: Service, request: Request) -> Response:
    one = await service.questions.look(request.path_params["name"], 0.0)
    if one is None:
        return _none(request)
    await service.questions.cancel(one)
    return Response(one.document(), 200, None, "application/json")


def _none(request: Request) -> Response:
    name = shorten(request.path_params["name"])
    return _response(told(404, "input", f"question: got {name}; allowed: an id that POST "
                          "/v1/questions gave, not too long ago"))


# ---------------------------------------------------------------- sweeps


async def _start(service: Service, request: Request) -> Response:
    body = await _body(service, request)
    found = await service.caught(service.studies.start, body, asked=body)
    if isinstance(found, Reply):
        return _response(found)
    return JSONResponse(found.document(), 202, {"Location": f"/v1/sweeps/{found.id}"})


async def _list(service: Service, request: Request) -> Response:
    refused = await service.caught(service.studies.look)
    if isinstance(refused, Reply):
        return _response(refused)
    return JSONResponse({"sweeps": [one.document() for one in service.studies.known.values()]})


async def _state(service: Service, request: Request) -> Response:
    one = await _found(service, request)
    return one if isinstance(one, Response) else JSONResponse(one.document())


async def _cancel(service: Service, request: Request) -> Response:
    one = await _found(service, request)
    if isinstance(one, Response):
        return one
    service.studies.cancel(one)
    return JSONResponse(one.document(), 202)


async def _points(service: Service, request: Request) -> Response:
    one, file_format = await _found(service, request), request.query_params.get("format", "json")
    if isinstance(one, Response):
        return one
    if file_format not in TABLES:
        return _response(told(400, "input", f"format: got {shorten(file_format)}; allowed: "
                              f"{', '.join(TABLES)}"))
    table = await service.caught(service.studies.table, one, file_format)
    if isinstance(table, Reply):
        return _response(table)
    return Response(table, 200, None, TABLES[file_format])


async def _events(service: Service, request: Request) -> Response:
    one = await _found(service, request)
    if isinstance(one, Response):
        return one
    return _stream(service.studies.events(one))


async def _found(service: Service, request: Request) -> RunningStudy | Response:
    name = request.path_params["name"]
    one = await service.caught(service.studies.find, name)
    if one is None:
        return _response(told(404, "input", f"sweep: got {shorten(name)}; allowed: an id that "
                              "POST /v1/sweeps gave"))
    return _response(one) if isinstance(one, Reply) else one


# ---------------------------------------------------------------- the rest


async def _catalog(service: Service, request: Request) -> Response:
    import nest

    limits = service.limits
    return JSONResponse({"models": nest.list_models(), "clusters": nest.list_clusters(),
                         "devices": nest.list_devices(), "stacks": nest.list_stacks(),
                         "precisions": get_args(Precision), "targets": [*TARGETS, *TRACES],
                         "limits": {**limits._asdict(), "bytes": service.settings.body}})


async def _entry(service: Service, request: Request) -> Response:
    """What the catalog says of one name."""
    section, name = request.path_params["section"], request.path_params["name"]
    if section not in catalog.SECTIONS:
        return _response(told(404, "input", f"section: got {shorten(section)}; allowed: "
                              f"{', '.join(catalog.SECTIONS)}"))
    try:
        return JSONResponse({"fields": catalog.load(section, name),
                             "facts": catalog_row(section, name)})
    except InputError as error:
        return _response(told(404, "input", f"{section}: {error}"))


async def _explorer(service: Service, request: Request) -> Response:
    found = explorer_page(service.settings.token is not None)
    return Response(found.text, 200, {
        "Content-Security-Policy": found.policy + "; frame-ancestors 'none'",
        "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff"}, TEXTS["page"])


async def _openapi(service: Service, request: Request) -> Response:
    return JSONResponse(openapi())


async def _health(service: Service, request: Request) -> Response:
    if service.ending:
        return _response(handed_back())
    return JSONResponse({"status": "ok", "version": __version__})


async def _ready(service: Service, request: Request) -> Response:
    if service.ending:
        return _response(handed_back())
    if not service.ready:
        return _response(starting())
    return JSONResponse({"status": "ready", "version": __version__})


async def _metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), 200, None, TEXTS["metrics"])
