"""Ollama's routes that change which models there are: pull, create, copy and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.ollama.modelfile import CreateRequest, read_create
from quire.server.apis.ollama.writing import OLLAMA_FORM
from quire.server.bodies.json_http import context_of, json_response
from quire.server.http.event_stream import EventStream, until_gone
from quire.server.http.problems import HttpError, Problem
from quire.server.requests.fields import Count
from quire.server.routing import BAD_BODY, Routes

if TYPE_CHECKING:
    from quire.server.fleet.library import Library, Pull

ROUTES = Routes("models")
_LATEST = ":latest"
_MAX_NAME_CHARS = 256


class PullRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Names a model of the hub."""

    model: str | None = None
    name: str | None = None
    """An older name of `model`."""
    insecure: bool | None = None
    """Accepted and not used: HF_ENDPOINT of the server names the hub."""
    stream: bool | None = None


class PullLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step of a pull."""

    status: str = ""
    digest: str = ""
    """The same for all lines with bytes."""
    total: Count = 0
    completed: Count = 0
    error: str = ""
    """Why the model was not pulled; nothing follows."""


class CopyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Names a model, and its further name."""

    source: str
    destination: str


class DeleteRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Names a model."""

    model: str | None = None
    name: str | None = None
    """An older name of `model`."""


@ROUTES.on(
    "POST",
    "/api/pull",
    response=PullLine,
    stream=PullLine,
    errors=(*BAD_BODY, 500),
    switch="library",
)
async def pull_model(http: Request, asked: PullRequest) -> Response | ASGIApp:
    """Fetches a model from the hub, and offers it."""
    pull = _library_of(http).pull(_checked(asked.model or asked.name, "model"))
    if asked.stream is False:
        last = await until_gone(http, pull.close, _last(pull))
        return Response() if last is None else json_response(last)
    keep_alive_s = context_of(http).args.sse_keep_alive_interval
    return EventStream(pull.lines(), pull.close, form=OLLAMA_FORM, keep_alive_s=keep_alive_s)


class CreateLine(msgspec.Struct, kw_only=True):
    """One step of making a model."""

    status: str


@ROUTES.on(
    "POST", "/api/create", response=CreateLine, stream=CreateLine,
    errors=(*BAD_BODY, 409), switch="library",
)  # fmt: skip
async def create_model(http: Request, asked: CreateRequest) -> Response:
    """Makes a name for a model with settings of its own, and offers it."""
    name = _checked(asked.model or asked.name, "model")
    base, settings, ignored = read_create(asked)
    await _library_of(http).create(name, _checked(base, "from"), settings)
    steps = [f"parameter {one} has no effect here" for one in ignored]
    lines = [CreateLine(status=one) for one in (*steps, "writing manifest", "success")]
    if asked.stream is False:
        return json_response(lines[-1])
    text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return Response(text, media_type=OLLAMA_FORM.media)


@ROUTES.on("POST", "/api/copy", switch="library")
async def copy_model(http: Request, asked: CopyRequest) -> None:
    """Gives a model a further name."""
    library = _library_of(http)
    library.copy(_checked(asked.source, "source"), _checked(asked.destination, "destination"))


@ROUTES.on("DELETE", "/api/delete", errors=(*BAD_BODY, 403, 409), switch="library")
async def delete_model(http: Request, asked: DeleteRequest) -> None:
    """Deletes a further name, or a model that was pulled."""
    await _library_of(http).delete(_checked(asked.model or asked.name, "model"))


async def _last(pull: Pull) -> PullLine:
    last = PullLine()
    async for line in pull.lines():
        last = msgspec.json.decode(line, type=PullLine)
    if last.error:
        raise HttpError(Problem(500, last.error))
    return last


def _library_of(http: Request) -> Library:
    library: Library = http.app.state.library
    return library


def _checked(name: str | None, field: str) -> str:
    name = (name or "").removesuffix(_LATEST)
    if not name or len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise RequestError(
            f"{field} must be a name of at most {_MAX_NAME_CHARS} printable characters, such as "
            "org/name:Q4_K_M", parameter=field,
        )  # fmt: skip
    return name
