"""Facts of a served model in Ollama's form, from its files: it need not be loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.chat.templates import ChatTemplates
from quire.config import ModelConfig
from quire.errors import ModelError, QuireError
from quire.gguf.facts import GgufFacts, read_facts
from quire.server.apis.ollama.schema import ModelDetails
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
    from quire.server.served_model import format_choice

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
