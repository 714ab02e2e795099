"""Ollama's routes about models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`, and those that
pull, copy and delete."""

from __future__ import annotations

import hashlib
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import ModelError, RequestError
from quire.server.apis.ollama.schema import (
    ListedModel,
    LoadedModel,
    LoadedModels,
    ModelDetails,
    ModelTags,
    OllamaVersion,
    ShownModel,
    ShowRequest,
)
from quire.server.apis.ollama.writing import OLLAMA_FORM, written_time
from quire.server.bodies.json_http import context_of, json_response
from quire.server.context import ServerContext
from quire.server.http.auth import is_operator
from quire.server.http.event_stream import EventStream, until_gone
from quire.server.http.problems import HttpError, Problem
from quire.server.requests.fields import Count
from quire.server.routing import BAD_BODY, Routes
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.server.fleet.library import Library, Pull


_VERSION = "0.12.11"
"""The version of Ollama whose API this is. Clients compare it before they use newer fields."""
_FOREVER_S = 100 * 365 * 86400
_MAX_FILES = 1000
"""Most files of a model's directory whose size is added up."""


ROUTES = Routes("models")


@ROUTES.on("GET", "/api/tags")
async def tags(http: Request) -> ModelTags:
    """The models that are served."""
    context = context_of(http)
    found = [ListedModel(**_entry(context, name)) for name in _known(context)]
    return ModelTags(models=found)


@ROUTES.on("GET", "/api/ps")
async def running(http: Request) -> LoadedModels:
    """The models in memory."""
    context = context_of(http)
    found = []
    for name in _known(context):
        model = context.target(name).model
        if context.fleet is not None and model.engine is None:
            continue
        end = written_time(_expires_at(http, model))
        found.append(LoadedModel(
            **_entry(context, name),
            expires_at=end,
            context_length=model.config.model.max_model_len,
        ))  # fmt: skip
    return LoadedModels(models=found)


def _known(context: ServerContext) -> list[str]:
    fleet = context.fleet
    if fleet is None:
        return context.names
    return [
        name
        for name in context.names
        if fleet.member_of(context.target(name).model).config is not None
    ]


def _expires_at(http: Request, model: ServedModel) -> float:
    """When the model is unloaded if no request comes, in seconds since the epoch. Of several API
    keys, the operator's see when it was used; for others it is used now."""
    context = context_of(http)
    member = None if context.fleet is None else context.fleet.member_of(model)
    forever = context.created + _FOREVER_S
    if member is None or member.keep_alive_s is None:
        return forever
    used_s = member.last_used - time.monotonic() if is_operator(http.scope) else 0.0
    return min(forever, time.time() + used_s + member.keep_alive_s)


@ROUTES.on("POST", "/api/show")
async def show(http: Request, asked: ShowRequest) -> ShownModel:
    """Facts about one model."""
    context = context_of(http)
    target = context.target(asked.model or asked.name)
    model, entry = target.model, _entry(context, target.name)
    config = model.config.model
    family = entry["details"].family
    return ShownModel(
        modelfile=f"FROM {target.name}\n",
        parameters="\n".join(
            f"{name} {value}" for name, value in config.default_sampling_params.items()
        ),
        template="",
        details=entry["details"],
        model_info={
            "general.architecture": family,
            "general.parameter_count": _num_parameters(model),
            f"{family}.context_length": config.max_model_len,
        },
        capabilities=await _capabilities(model),
        modified_at=entry["modified_at"],
    )


@ROUTES.on("GET", "/api/version", tag="server")
async def version(_: Request) -> OllamaVersion:
    """The version of Ollama's API that is here."""
    return OllamaVersion(version=_VERSION)


def _entry(context: ServerContext, name: str) -> dict[str, Any]:
    model = context.target(name).model
    config = model.config.model
    size, changed_at = _files(config.path)
    digest = hashlib.sha256(f"{config.model} {model.fingerprint} {name}".encode()).hexdigest()
    return {
        "name": name, "model": name, "size": size, "digest": digest,
        "modified_at": written_time(changed_at or context.created), "details": _details(model),
    }  # fmt: skip


def _details(model: ServedModel) -> ModelDetails:
    config = model.config.model
    family = str(config.hf_config.get("model_type") or "unknown")
    count = _num_parameters(model)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
    return ModelDetails(
        format="gguf" if config.path.suffix.lower() == ".gguf" else "safetensors",
        family=family,
        families=[family],
        parameter_size=size,
        quantization_level=str(config.quantization or config.dtype),
    )


def _num_parameters(model: ServedModel) -> int:
    """The number of parameters; 0 for a model that transformers runs."""
    from quire.models import build_program

    if model.num_parameters is None:
        try:
            program = build_program(model.config.model.hf_config)
        except ModelError:
            model.num_parameters = 0
        else:
            model.num_parameters = sum(param.num_elements for param in program.params())
    return model.num_parameters


@lru_cache(maxsize=64)
def _files(path: Path) -> tuple[int, float]:
    """The bytes of the weight files at a path, and when the newest was changed."""
    files = [path] if path.is_file() else sorted(path.glob("*"))[:_MAX_FILES]
    stats = [one.stat() for one in files if one.suffix in (".safetensors", ".bin", ".gguf")]
    return sum(one.st_size for one in stats), max((one.st_mtime for one in stats), default=0.0)


async def _capabilities(model: ServedModel) -> list[str]:
    if model.config.model.pooling is not None:
        return ["embedding"]
    reply = await model.reply_format()
    found = ["completion"]
    if reply.tools is not None:
        found.append("tools")
    if reply.reasoning is not None:
        found.append("thinking")
    if model.config.model.takes("image"):
        found.append("vision")
    return found


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
