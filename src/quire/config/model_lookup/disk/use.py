"""`options_of`: the options with which an engine runs a model that was found on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import read_config, read_json_object
from quire.config.model_lookup.disk.found import LocalModel
from quire.config.model_lookup.disk.go_templates import is_plain, jinja_of, names_of_forms
from quire.config.model_lookup.hub import resolve_model
from quire.errors import ConfigError, ModelError, ModelNotFoundError, quoted
from quire.log import get_logger
from quire.units import MiB

logger = get_logger(__name__)
_MAX_TOKENIZER = 256 * MiB


def options_of(model: LocalModel) -> dict[str, Any]:
    """Options by name; `model` and `served_model_name` among them. What is not used is in the log.
    Raises QuireError for a model that cannot be used."""
    if model.problem:
        raise ModelNotFoundError(f"{quoted(model.name)}: {model.problem}")
    for note in model.notes:
        logger.warning("%s: %s", model.name, note)
    options = model.settings.options()
    options |= {"model": str(model.path), "served_model_name": model.name}
    if (projector := _usable_projector(model)) is not None:
        options["mmproj"] = str(projector)
    if options.get("max_model_len") is None and not model.go_template:
        return options
    directory = resolve_model(str(model.path), mmproj=options.get("mmproj"))
    _bound_length(model.name, options, read_config(directory))
    if model.go_template and not _has_template(directory):
        _add_template(model, options, directory)
    return options


def _usable_projector(model: LocalModel) -> Path | None:
    if model.projector is None:
        return None
    from quire.gguf.container import read_header  # rarely used
    from quire.gguf.projectors.row import vision_keys

    try:
        vision_keys([read_header(model.projector)])
    except ModelError as error:
        logger.warning("%s takes no images: %s", model.name, error)
        return None
    return model.projector


def _bound_length(name: str, options: dict[str, Any], config: Mapping[str, Any]) -> None:
    """A longer context than the model's becomes the model's, as in Ollama."""
    text = config.get("text_config")
    most = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    asked = options.get("max_model_len")
    if asked is not None and isinstance(most, int) and 0 < most < asked:
        logger.warning("%s: its num_ctx is %d; the model's %d is used", name, asked, most)
        options["max_model_len"] = most


def _has_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file():
        return True
    return bool(read_json_object(directory / "tokenizer_config.json").get("chat_template"))


def _add_template(model: LocalModel, options: dict[str, Any], directory: Path) -> None:
    if is_plain(model.go_template):
        return
    found = jinja_of(model.go_template, begins=_begins_with_bos(directory))
    if found is None:
        logger.warning(
            "%s: its file has no chat template, and Ollama's template has a form that is not known "
            "here, so it continues texts; give a Jinja template with --chat-template FILE",
            model.name,
        )
        return
    logger.info("%s: its chat template is of the form %s, as Ollama's", model.name, found[0])
    options["chat_template"] = found[1]


def jinja_template(text: str, model: str) -> str:
    """A template of Ollama's in Jinja, for the model of this place; one in Jinja stays. Raises
    ModelNotFoundError, and ConfigError for a form of chat that is not known."""
    if "{%" in text or "{{" not in text:
        return text
    if is_plain(text):
        return "{%- for m in messages -%}{{- m['content'] -}}{%- endfor -%}"
    if jinja_of(text, begins=False) is not None:
        directory = resolve_model(model, needs_weights=False, fetches=False)
        if found := jinja_of(text, begins=_begins_with_bos(directory)):
            return found[1]
    raise ConfigError(
        "template must be in Jinja, or a Go template of one of the forms "
        f"{', '.join(names_of_forms())}; leave it out for the model's own"
    )


def _begins_with_bos(directory: Path) -> bool:
    """Whether the tokenizer puts a special token in front of a text."""
    tokenizer = read_json_object(directory / "tokenizer.json", max_bytes=_MAX_TOKENIZER)
    processor = tokenizer.get("post_processor") or {}
    return "SpecialToken" in (processor.get("single") or [{}])[0]
