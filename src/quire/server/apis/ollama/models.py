"""Ollama's routes about models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`; and the facts
of a served model in Ollama's form, from its files: it need not be loaded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.requests import Request

from quire.chat.templates import ChatTemplates
from quire.config import ModelConfig
from quire.config.model_lookup.aliases import target_of
from quire.config.model_lookup.settings import OLLAMA_NAMES
from quire.errors import ConfigError, ModelError, QuireError
from quire.gguf.facts import GgufFacts, read_facts
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
from quire.server.apis.ollama.writing import written_time
from quire.server.bodies.json_http import context_of
from quire.server.context import ServerContext
from quire.server.http.auth import is_operator
from quire.server.routing import Routes
from quire.server.served_model import ServedModel
from quire.weights import weight_files

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_MAX_ITEMS = 5
"""A longer list of a GGUF file's metadata is shown only where all is asked for."""


def details_of(model: ServedModel, parent: str = "") -> ModelDetails:
    """Kind, format and size. Reads files at the first call."""
    config = model.config.model
    facts = gguf_facts(config)
    family = _family(config)
    if facts is None:
        described = config.hf_config.get("quantization_config")
        method = described.get("quant_method") if isinstance(described, Mapping) else None
        level = str(config.quantization or method or _DTYPES.get(config.dtype, config.dtype))
    else:
        family, level = facts.architecture, facts.file_type
    count = num_parameters(model)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
    return ModelDetails(
        parent_model=parent,
        format="safetensors" if facts is None else "gguf",
        family=family,
        families=[family],
        parameter_size=size,
        quantization_level=level,
    )


def info_of(model: ServedModel, *, has_all: bool) -> dict[str, Any]:
    """The metadata of a GGUF file, or what config.json says of another model; `has_all`: with long
    lists."""
    config = model.config.model
    facts = gguf_facts(config)
    info: dict[str, Any] = {}
    family = _family(config)
    if facts is not None:
        family = facts.architecture
        hidden = ("general.name", "tokenizer.chat_template")
        info = {
            name: [] if isinstance(value, list) and len(value) > _MAX_ITEMS and not has_all
            else value
            for name, value in facts.metadata.items() if name not in hidden
        }  # fmt: skip
    else:
        names = {"hidden_size": "embedding_length", "num_hidden_layers": "block_count"}
        info = {
            f"{family}.{shown}": config.hf_config[name]
            for name, shown in names.items() if isinstance(config.hf_config.get(name), int)
        }  # fmt: skip
    return info | {
        "general.architecture": family,
        "general.parameter_count": num_parameters(model),
        f"{family}.context_length": config.max_model_len,
    }


def num_parameters(model: ServedModel) -> int:
    """The number of parameters; 0 for a model that transformers runs."""
    from quire.models import build_program

    if model.num_parameters is None:
        config = model.config.model
        facts = gguf_facts(config)
        if facts is not None:
            model.num_parameters = facts.num_parameters
            return model.num_parameters
        try:
            program = build_program(config.hf_config)
        except ModelError:
            model.num_parameters = 0
        else:
            model.num_parameters = sum(param.num_elements for param in program.params())
    return model.num_parameters


def chat_template(config: ModelConfig) -> str:
    """The main chat template; "": there is none."""
    try:
        return ChatTemplates.of_model(config, {}).templates.get("default", "")
    except QuireError:
        return ""


async def capabilities_of(model: ServedModel) -> list[str]:
    """Names of what the model can do."""
    config = model.config.model
    if config.pooling is not None:
        return ["embedding"]
    reasons, calls = await _reply_abilities(model)
    found = ["completion"]
    if calls:
        found.append("tools")
    if reasons:
        found.append("thinking")
    if config.takes("image"):
        found.append("vision")
    return found


async def _reply_abilities(model: ServedModel) -> tuple[bool, bool]:
    """Whether the replies have reasoning, and calls of tools."""
    async with model.abilities_lock:
        if model.reply_abilities is None and model.engine is not None:
            reply = await model.reply_format()
            model.reply_abilities = (reply.reasoning is not None, reply.tools is not None)
        if model.reply_abilities is None:
            model.reply_abilities = await asyncio.to_thread(_abilities_by_files, model)
        return model.reply_abilities


def _abilities_by_files(model: ServedModel) -> tuple[bool, bool]:
    from quire.chat.renderer import ChatRenderer
    from quire.parsers.detection.finder import find_blocking
    from quire.server.reply_formats import format_choice

    config = model.config
    if config.model.tokenizer_path is None:
        return False, False  # no texts without a tokenizer
    renderer = ChatRenderer(ChatTemplates.of_files(config.model))
    try:
        found = find_blocking(format_choice(model.args, config), config.model, renderer)
    finally:
        renderer.close()
    return found.reply.reasoning is not None, found.reply.tools is not None


def gguf_facts(config: ModelConfig) -> GgufFacts | None:
    """The facts of a GGUF model; None: it is another one."""
    return _facts_at(config.path)


@lru_cache(maxsize=64)
def _facts_at(path: Path) -> GgufFacts | None:
    if not any(path.glob("*.gguf")):
        return None
    files = [file for file in weight_files(path) if file.suffix == ".gguf"]
    return read_facts(files) if files else None


def _family(config: ModelConfig) -> str:
    return str(config.hf_config.get("model_type") or "unknown")


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
    return ModelTags(models=await asyncio.to_thread(_listed, context))


def _listed(context: ServerContext) -> list[ListedModel]:
    return [ListedModel(**_entry(context, name)) for name in _known(context)]


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
            **await asyncio.to_thread(_entry, context, name),
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
    """Facts about one model, which need not be loaded."""
    context = context_of(http)
    target = context.target(asked.model or asked.name)
    model, config = target.model, target.model.config.model
    entry = await asyncio.to_thread(_entry, context, target.name)
    info = await asyncio.to_thread(info_of, model, has_all=asked.verbose is True)
    parameters = _parameters(config.default_sampling_params)
    system = model.args.system_prompt
    lines = [
        '# Modelfile generated by "ollama show"',
        f"FROM {entry['details'].parent_model or target.name}",
        *("PARAMETER " + " ".join(line.split(None, 1)) for line in parameters),
        *([f'SYSTEM """{system}"""'] if system else []),
        *("MESSAGE " + one for one in model.args.first_messages or ()),
    ]
    return ShownModel(
        license=str(info.get("general.license") or ""),
        modelfile="\n".join(lines) + "\n",
        parameters="\n".join(parameters),
        template=await asyncio.to_thread(chat_template, config),
        system=system,
        details=entry["details"],
        model_info=info,
        capabilities=await capabilities_of(model),
        modified_at=entry["modified_at"],
    )


def _parameters(defaults: Mapping[str, Any]) -> list[str]:
    """Names and values as a Modelfile has them."""
    names = {own: name for name, own in OLLAMA_NAMES.items()}
    pairs = [
        (names.get(name, name), one)
        for name, value in defaults.items()
        for one in (value if isinstance(value, list) else [value])
        if name != "skip_special_tokens"
    ]
    return [f"{name:<30} {json.dumps(value)}" for name, value in pairs]


@ROUTES.on("GET", "/api/version", tag="server")
async def version(_: Request) -> OllamaVersion:
    """The version of Ollama's API that is here."""
    return OllamaVersion(version=_VERSION)


def _entry(context: ServerContext, name: str) -> dict[str, Any]:
    model = context.target(name).model
    config = model.config.model
    parent = ""
    with suppress(ConfigError):  # a damaged file of aliases is reported where it matters
        parent = target_of(config.model) or ""
    if parent.startswith("/"):  # clients see no paths
        parent = ""
    details = details_of(model, parent)
    size, changed_at = _files(config.path)
    digest = hashlib.sha256(f"{config.model} {model.fingerprint} {name}".encode()).hexdigest()
    return {
        "name": name, "model": name, "size": size, "digest": digest,
        "modified_at": written_time(changed_at or context.created), "details": details,
    }  # fmt: skip


@lru_cache(maxsize=64)
def _files(path: Path) -> tuple[int, float]:
    """The bytes of the weight files at a path, and when the newest was changed."""
    files = [path] if path.is_file() else sorted(path.glob("*"))[:_MAX_FILES]
    stats = [one.stat() for one in files if one.suffix in (".safetensors", ".bin", ".gguf")]
    return sum(one.st_size for one in stats), max((one.st_mtime for one in stats), default=0.0)
