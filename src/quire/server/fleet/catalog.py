"""The models that a server offers: read from a file (`--models`) or from the command line.

Reads no checkpoints: `members` plans each model.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.command_line.config_files import read_config
from quire.config.command_line.values import parse_duration
from quire.config.engine_args import EngineArgs
from quire.config.field_types import check_fields
from quire.config.model_lookup.aliases import settings_of, target_of
from quire.config.model_lookup.disk.found import LocalModel
from quire.config.model_lookup.disk.places import Found
from quire.config.model_lookup.disk.use import options_of
from quire.config.model_lookup.settings import AliasSettings, over_defaults
from quire.errors import ConfigError, QuireError, RequestError, quoted
from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.suggest import did_you_mean

logger = get_logger(__name__)
_OF_SERVER = frozenset({
    "chat_template_content_format", "default_chat_template_kwargs", "first_messages",
    "lora_modules", "prompt_adapters", "reasoning_effort_map", "response_role", "system_prompt",
    "tool_call_parser", "tool_strict_level",
})  # fmt: skip
"""Options of the server that a model may have for itself."""
_MAX_MODELS = 256
_KEYS = ("name", "model", "aliases", "preload", "keep_alive", "options")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model."""

    names: tuple[str, ...]
    """Names by which requests ask for it."""
    engine: EngineArgs
    server: ServerArgs
    keep_alive_s: float | None
    """Seconds without a request after which it is unloaded; None: it stays."""
    is_preloaded: bool = False
    """Whether it is loaded when the server starts."""
    is_found: bool = False
    """Whether it comes from a folder: a server starts without it if it cannot be served."""


def catalog_of_one(engine: EngineArgs, server: ServerArgs) -> CatalogEntry:
    """The model of a server that begins with one, and to which callers may add. Raises
    ConfigError."""
    asked = engine.served_model_name
    names = [asked] if isinstance(asked, str) else list(asked or (engine.model or DEMO_MODEL,))
    fields = {"model": engine.model or DEMO_MODEL, "name": names[0], "aliases": names[1:]}
    return _entry({**fields, "preload": True}, engine, server)


def catalog_of_words(
    models: Sequence[str], engine: EngineArgs, server: ServerArgs
) -> list[CatalogEntry]:
    """The models of `quire serve A B C`, whose first one is loaded at the start.

    --served-model-name has a name for each. Raises ConfigError.
    """
    asked = engine.served_model_name
    names = [asked] if isinstance(asked, str) else list(asked or ())
    if names and len(names) != len(models):
        raise ConfigError(
            f"--served-model-name needs one name for each of the {len(models)} models, got "
            f"{len(names)}; or give the names in a file, with --models"
        )
    entries = [
        _entry({"model": model, "name": name, "preload": index == 0}, engine, server)
        for index, (model, name) in enumerate(zip(models, names or models, strict=True))
    ]
    return _checked(entries)


def read_catalog(path: str, engine: EngineArgs, server: ServerArgs) -> list[CatalogEntry]:
    """The models of a file. Options of the command line hold where the file has none.

    Raises ConfigError that names the file and the mistake.
    """
    found = read_config(Path(path), "--models")
    models = found.pop("models", None)
    if found or not isinstance(models, list) or not 0 < len(models) <= _MAX_MODELS:
        raise ConfigError(
            f"--models {path}: must have the key `models` with a list of 1 to {_MAX_MODELS} "
            "models, and no other key; an element of the list is `model: PATH` with options"
        )
    try:
        return _checked([_entry(one, engine, server) for one in models])
    except ConfigError as error:
        raise ConfigError(f"--models {path}: {error}") from None


def with_found(
    named: Sequence[CatalogEntry], found: Found, engine: EngineArgs, server: ServerArgs
) -> list[CatalogEntry]:
    """The models that the user has named, which may be some of those found, and the other ones
    found. One that cannot be used is in the log alone. Raises QuireError."""
    if engine.served_model_name and not named:
        raise ConfigError("--served-model-name needs a model besides --models-dir, as a word")
    entries, paths = list[CatalogEntry](), set[Path]()
    for entry in named:
        name = entry.engine.model or ""
        model = None if os.path.exists(name) else found.find(target_of(name) or name)
        if model is not None:
            made, served = _with_options(model, entry.names, entry.engine, entry.server)
            entry = replace(entry, engine=made, server=served)
            paths.add(model.path)
        entries.append(entry)
    taken = {name for entry in entries for name in entry.names}
    for note in found.notes:
        logger.warning("%s", note)
    for model in found.models:
        if model.path in paths:
            continue
        if len(entries) >= _MAX_MODELS:
            logger.warning("only %d models are served, which is the limit", _MAX_MODELS)
            break
        try:
            if model.name in taken:
                raise ConfigError("another model has this name")
            names = (model.name,)
            made, served = _with_options(model, names, engine, server)
            entries.append(CatalogEntry(names, made, served, server.model_ttl, is_found=True))
        except QuireError as error:
            logger.warning("%s is not served: %s", model.name, model.problem or error)
    if not entries:
        folders = ", ".join(server.models_dir)
        raise ConfigError(f"no model in the folders of --models-dir can be served: {folders}")
    return entries


def _with_options(
    model: LocalModel, names: Sequence[str], engine: EngineArgs, server: ServerArgs
) -> tuple[EngineArgs, ServerArgs]:
    options = options_of(model)
    made = over_defaults(engine, options)
    made = replace(made, model=options["model"], served_model_name=list(names))
    return made, over_defaults(server, options)


def own_settings(entry: CatalogEntry, engine: EngineArgs, server: ServerArgs) -> AliasSettings:
    """The settings of a model that are not those of the command line."""
    shared = engine.override_generation_config or {}
    sampling = {
        name: value
        for name, value in (entry.engine.override_generation_config or {}).items()
        if shared.get(name) != value
    }

    def own(mine: Any, of_all: Any) -> Any:
        return None if mine == of_all else mine

    return AliasSettings.of_options(
        {
            "override_generation_config": sampling,
            "chat_template": own(entry.engine.chat_template, engine.chat_template),
            "max_model_len": own(entry.engine.max_model_len, engine.max_model_len),
            "system_prompt": own(entry.server.system_prompt, server.system_prompt),
            "first_messages": own(entry.server.first_messages, server.first_messages),
        }
    )


def keep_alive_seconds(value: Any) -> float | None:
    """The seconds of `10m`, `90` or 90; None, for ever, if it is negative. Raises ConfigError."""
    if isinstance(value, str):
        with suppress(ArgumentTypeError):
            seconds = parse_duration(value.removeprefix("-"))
            return None if value.startswith("-") else seconds
    elif type(value) in (int, float) and value <= sys.float_info.max:
        return float(value) if value >= 0 else None
    raise ConfigError(
        f"keep_alive must be seconds, a time such as 10m, or a negative number for ever, got "
        f"{quoted(value)}"
    )


def parsed_keep_alive(value: str | int | float) -> float | None:
    """The same for the field of a request. Raises RequestError."""
    try:
        return keep_alive_seconds(value)
    except ConfigError as error:
        raise RequestError(str(error), parameter="keep_alive", value=value) from None


def _entry(fields: Any, engine: EngineArgs, server: ServerArgs) -> CatalogEntry:
    if isinstance(fields, str):
        fields = {"model": fields}
    if not isinstance(fields, dict) or not fields.get("model"):
        raise ConfigError(f"a model must be `model: PATH` with options, got {quoted(fields)}")
    for key in fields:
        if key not in _KEYS:
            near = did_you_mean(str(key), _KEYS)
            raise ConfigError(
                f"{quoted(fields['model'])}: unknown key {quoted(key)}{near or '; use one of '}"
                f"{'' if near else ', '.join(_KEYS)}"
            )
    fields = {key: value for key, value in fields.items() if value is not None}
    names = _names(fields)
    try:
        return _entry_of(names, fields, engine, server)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{names[0]}: {error}") from None


def _entry_of(
    names: tuple[str, ...], fields: Mapping[str, Any], engine: EngineArgs, server: ServerArgs
) -> CatalogEntry:
    options = _options(fields.get("options", {}))
    own = {name: value for name, value in options.items() if name not in _OF_SERVER}
    shared: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if name in _OF_SERVER
    }
    is_preloaded = fields.get("preload", False)
    if not isinstance(is_preloaded, bool):
        raise ConfigError(f"preload must be true or false, got {quoted(is_preloaded)}")
    made = replace(engine, **{**own, "model": fields["model"], "served_model_name": list(names)})
    check_fields(made)
    served = replace(server, **shared)
    settings = settings_of(fields["model"]).options()
    made, served = over_defaults(made, settings), over_defaults(served, settings)
    keep_alive_s = server.model_ttl
    if "keep_alive" in fields:
        keep_alive_s = keep_alive_seconds(fields["keep_alive"])
    return CatalogEntry(names, made, served, keep_alive_s, is_preloaded)


def _options(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"options must be `option: value` lines, got {quoted(given)}")
    options = {str(name).replace("-", "_"): value for name, value in given.items()}
    if len(options) < len(given):
        raise ConfigError("each of the options must be given once, with dashes or without")
    for name in ("model", "served_model_name"):
        if name in options:
            raise ConfigError(f"options must not have {name}; use the keys model, name and aliases")
    return options


def _names(fields: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = fields.get("aliases", [])
    names = [fields.get("name", fields["model"]), *(aliases if isinstance(aliases, list) else [0])]
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigError(
                f"{quoted(fields['model'])}: name must be a printable text, and aliases a list of "
                "them"
            )
    return tuple(dict.fromkeys(names))


def _checked(entries: Iterable[CatalogEntry]) -> list[CatalogEntry]:
    found, owners = list(entries), dict[str, int]()
    for index, entry in enumerate(found):
        for name in entry.names:
            if owners.setdefault(name, index) != index:
                raise ConfigError(
                    f"two models have the name {quoted(name)}; give each a name of its own"
                )
    return found
