"""Ollama's routes that change which models there are: pull, create, copy and delete;
and the reading of what a model is made of: fields of a body, or a Modelfile's text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.config.model_lookup.settings import AliasSettings, settings_of_parameters
from quire.errors import ConfigError, RequestError, quoted
from quire.server.apis.ollama.writing import OLLAMA_FORM
from quire.server.bodies.json_http import context_of, json_response
from quire.server.endpoint import BAD_BODY
from quire.server.http.event_stream import EventStream
from quire.server.http.presence import until_gone
from quire.server.http.problems import HttpError, Problem
from quire.server.requests.fields import Count
from quire.server.routing import Routes

if TYPE_CHECKING:
    from quire.server.fleet.library import Library, Pull


_MAX_CHARS = 1 << 20
_LINE = re.compile(r"[ \t]*(\w+)[ \t]+", re.ASCII)
_NAME = re.compile(r"([^\s]+)[ \t]+(?=[^\s])")
_QUOTES = '"""'
_QUOTED = re.compile(r'("""|")(.*?)\1[ \t\r]*(?:\n|\Z)', re.DOTALL)
"""A text in quotes, which may have such quotes inside its lines."""


class FirstMessage(msgspec.Struct, kw_only=True):
    """A message with which each conversation begins."""

    role: Literal["system", "user", "assistant"]
    content: str


class CreateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Names a model, and what it is made of."""

    model: str | None = None
    name: str | None = None
    """An older name of `model`."""
    base: str | None = msgspec.field(name="from", default=None)
    """The model that it is made of."""
    system: str | None = None
    parameters: dict[str, Any] | None = None
    license: str | list[str] | None = None
    """Accepted; the license of the model is shown."""
    modelfile: str | None = None
    """Text with the fields of this request, as FROM, SYSTEM, PARAMETER, TEMPLATE, MESSAGE and
    LICENSE."""
    stream: bool | None = None
    template: str | None = None
    """A template in Jinja, or one of Ollama's in a form of chat that is known here."""
    messages: list[FirstMessage] | None = None
    """Messages with which each conversation begins."""
    adapters: dict[str, str] | None = None
    files: dict[str, str] | None = None
    quantize: str | None = None
    quantization: str | None = None
    path: str | None = None
    """These five must be empty."""


_REFUSED = {
    "adapters": "name adapters with --lora-modules when the server starts",
    "files": "files are not uploaded; FROM must name a model that is on this machine",
    "quantize": "the option --quantization of the server does that",
    "quantization": "the option --quantization of the server does that",
    "path": "a server reads no Modelfile from its disk; send its text as modelfile",
}


def read_create(body: CreateRequest) -> tuple[str, AliasSettings, list[str]]:
    """The name of the model that the new one is made of, its settings, and the parameters without
    effect here. Raises RequestError."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    if body.modelfile:
        parsed = parse_modelfile(body.modelfile)
        given |= {name: value for name, value in parsed.items() if not given[name]}
    for name, advice in _REFUSED.items():
        if given[name]:
            raise RequestError(f"{name} must be empty: {advice}", parameter=name)
    if not given["base"]:
        raise RequestError(
            'from must name a model, such as {"model": "mario", "from": "org/name", "system": '
            '"You are Mario."}',
            parameter="from",
        )
    try:
        settings, ignored = settings_of_parameters(
            given["parameters"] or {},
            system_prompt=given["system"] or "",
            chat_template=given["template"] or "",
            messages=[
                one if isinstance(one, str) else f"{one.role} {one.content}"
                for one in given["messages"] or ()
            ],
        )
    except ConfigError as error:
        raise RequestError(f"parameters: {error}", parameter="parameters") from None
    return given["base"], settings, ignored


def parse_modelfile(text: str) -> dict[str, Any]:
    """The fields of `CreateRequest` that a Modelfile gives. Raises RequestError."""
    if len(text) > _MAX_CHARS:
        raise _wrong(f"must have at most {_MAX_CHARS} characters")
    found: dict[str, Any] = {}
    rest = text
    while rest := _without_comments(rest):
        match = _LINE.match(rest)
        word = match[1].upper() if match else rest.split(None, 1)[0]
        if match is None and word in _INSTRUCTIONS:
            raise _wrong(f"must have a value after {word}")
        if match is None or word not in _INSTRUCTIONS:
            raise _wrong(f"knows no instruction {quoted(word)}; use {', '.join(_INSTRUCTIONS)}")
        value, rest = _value(rest[match.end() :], word)
        _add(found, word, value)
    return found


_INSTRUCTIONS = {
    "FROM": "base", "SYSTEM": "system", "PARAMETER": "parameters", "LICENSE": "license",
    "TEMPLATE": "template", "MESSAGE": "messages", "ADAPTER": "adapters",
}  # fmt: skip
"""Fields of `CreateRequest`."""


def _without_comments(text: str) -> str:
    while text := text.lstrip():
        if not text.startswith("#"):
            break
        text = text.partition("\n")[2]
    return text


def _value(text: str, word: str) -> tuple[str, str]:
    """The value that a text begins with, in quotes or up to the end of the line, and the rest."""
    name = ""
    if word in ("PARAMETER", "MESSAGE"):
        match = _NAME.match(text)
        if match is None:
            raise _wrong(f"must have a name and a value after {word}")
        name, text = f"{match[1]} ", text[match.end() :]
    if not text.startswith('"'):
        line, _, rest = text.partition("\n")
        return name + line.strip(), rest
    quoted_text = _QUOTED.match(text)
    if quoted_text is None:
        quote = _QUOTES if text.startswith(_QUOTES) else '"'
        raise _wrong(f"has a text after {word} without its closing {quote} at the end of a line")
    return name + quoted_text[2], text[quoted_text.end() :]


def _add(found: dict[str, Any], word: str, value: str) -> None:
    field = _INSTRUCTIONS[word]
    if word == "PARAMETER":
        name, _, text = value.partition(" ")
        own = found.setdefault(field, {})
        if name == "stop":
            own.setdefault(name, []).append(text)
        else:
            own[name] = text
    elif word in ("MESSAGE", "LICENSE"):
        found.setdefault(field, []).append(value)
    else:
        found[field] = {"": value} if word == "ADAPTER" else value


def _wrong(message: str) -> RequestError:
    return RequestError(f"modelfile {message}", parameter="modelfile")


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
