"""`AliasSettings`: the system text, chat template and sampling defaults that a short name adds to a
model, as Ollama's Modelfiles and manifests have them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire.errors import ConfigError, quoted

OLLAMA_NAMES = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
"""Ollama's parameters that `SamplingParams` has under another name."""
WITHOUT_EFFECT = frozenset({
    "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap", "use_mlock",
    "low_vram", "f16_kv", "vocab_only", "logits_all", "embedding_only", "penalize_newline",
    "draft_num_predict",
})  # fmt: skip
"""Ollama's parameters of how a model is loaded, which the options of the engine decide."""
NEUTRAL: dict[str, tuple[float, ...]] = {
    "typical_p": (1.0,), "tfs_z": (1.0,), "mirostat": (0,),
}  # fmt: skip
"""Ways to sample that are not here, with the values that switch them off."""
ONLY_WITH = frozenset({"mirostat_tau", "mirostat_eta"})
"""Parameters of a way to sample that is off."""
_MAX_CHARS = 1 << 20
_MAX_STOPS = 64
_MAX_MESSAGES = 256
_ROLES = ("system", "user", "assistant")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasSettings:
    """Defaults, which the options of a command and the fields of a request replace."""

    system_prompt: str = ""
    """System message of conversations that have none."""
    chat_template: str = ""
    """Jinja text; "": the model's own."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams`: numbers, `seed`, and `stop` as a list of texts."""
    max_model_len: int | None = None
    """Most tokens of a request (`num_ctx`)."""
    messages: Sequence[str] = ()
    """Messages with which each conversation begins: a role and a text, such as `user Hello.`."""

    def to_json(self) -> dict[str, Any]:
        """The settings that are given."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AliasSettings:
        """Raises ConfigError."""
        names = [one.name for one in dataclasses.fields(cls)]
        for name in found:
            if name not in names:
                raise ConfigError(f"unknown setting {quoted(name)}; use one of {', '.join(names)}")
        for name in ("system_prompt", "chat_template"):
            _checked_text(name, found.get(name, ""))
        length = found.get("max_model_len")
        if length is not None:
            _number("max_model_len", length, whole=True, least=1)
        sampling = found.get("sampling", {})
        if not isinstance(sampling, dict):
            raise ConfigError(f"sampling must be an object, got {quoted(sampling)}")
        messages = found.get("messages", ())
        if problem := problem_of_messages(messages):
            raise ConfigError(f"messages {problem}")
        return cls(**{**found, "sampling": _sampling(sampling), "messages": tuple(messages)})

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> AliasSettings:
        """The reverse of `options`; sampling defaults that an alias cannot have are left out."""
        sampling = dict(options["override_generation_config"])
        if "max_new_tokens" in sampling:
            sampling["max_tokens"] = sampling.pop("max_new_tokens")
        known = {
            name: value
            for name, value in sampling.items()
            if isinstance(value, list if name == "stop" else int | float)
            and (name in _NUMBERS or name == "stop")
        }
        given = {
            name: options[name] for name in ("chat_template", "max_model_len", "system_prompt")
        }
        given["messages"] = options.get("first_messages")
        return cls.from_json({k: v for k, v in {**given, "sampling": known}.items() if v})

    def options(self) -> dict[str, Any]:
        """The same as options of the engine and the server, by name."""
        sampling = dict(self.sampling)
        if "max_tokens" in sampling:
            sampling["max_new_tokens"] = sampling.pop("max_tokens")
        found = {
            "override_generation_config": sampling, "chat_template": self.chat_template,
            "max_model_len": self.max_model_len, "system_prompt": self.system_prompt,
            "first_messages": list(self.messages),
        }  # fmt: skip
        return {name: value for name, value in found.items() if value}


def settings_of_parameters(
    given: Mapping[str, Any],
    *,
    system_prompt: str = "",
    chat_template: str = "",
    messages: Sequence[str] = (),
) -> tuple[AliasSettings, list[str]]:
    """The settings of Ollama's parameters, and the names of those without effect here. A value may
    be a text, as a Modelfile has it, and `stop` a text or a list. Raises ConfigError."""
    sampling: dict[str, Any] = {}
    length, ignored = None, []
    for name, value in given.items():
        if name in WITHOUT_EFFECT or name in ONLY_WITH:
            ignored.append(name)
        elif name == "num_ctx":
            length = int(_number(name, value, whole=True, least=1))
        elif name in NEUTRAL:
            if _number(name, value) not in NEUTRAL[name]:
                raise ConfigError(
                    f"{name} must be {NEUTRAL[name][0]}: this way to sample is not supported"
                )
        elif name == "num_predict" and _number(name, value, whole=True) < 0:
            continue  # as many as fit, which is the default
        else:
            sampling[OLLAMA_NAMES.get(name, name)] = [value] if isinstance(value, str) and (
                name == "stop") else value  # fmt: skip
    made = AliasSettings.from_json({
        "system_prompt": system_prompt, "chat_template": chat_template,
        "max_model_len": length, "sampling": sampling, "messages": messages,
    })  # fmt: skip
    return made, ignored


def problem_of_messages(value: Any) -> str | None:
    """The error of the messages of a conversation's beginning; None: they are right."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if is_list and len(value) <= _MAX_MESSAGES and all(_is_message(one) for one in value):
        return None
    return (
        f"must be a list of up to {_MAX_MESSAGES} texts, each a role ({', '.join(_ROLES)}) and "
        f'what it says, such as "user Hello.", got {quoted(value)}'
    )


def messages_of(texts: Sequence[str]) -> list[dict[str, str]]:
    """Such messages in the form of a chat."""
    pairs = [text.split(None, 1) for text in texts]
    return [{"role": role.lower(), "content": content} for role, content in pairs]


def _is_message(value: Any) -> bool:
    parts = value.split(None, 1) if isinstance(value, str) and len(value) <= _MAX_CHARS else ()
    return len(parts) == 2 and parts[0].lower() in _ROLES


def over_defaults(record: _T, options: Mapping[str, Any]) -> _T:
    """A record of options with these in place of fields that have their defaults."""
    own: dict[str, Any] = {}
    for one in dataclasses.fields(record):  # type: ignore[arg-type]
        if one.name not in options:
            continue
        value = getattr(record, one.name)
        if isinstance(value, dict):
            own[one.name] = {**options[one.name], **value}
        elif value is None or value == one.default:
            own[one.name] = options[one.name]
    return dataclasses.replace(record, **own) if own else record  # type: ignore[type-var]


_NUMBERS: dict[str, Callable[[str, Any], float]] = {
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
         "frequency_penalty"),
        lambda name, value: _number(name, value),
    ),
    **dict.fromkeys(("top_k", "seed"), lambda name, value: _number(name, value, whole=True)),
    "repeat_last_n": lambda name, value: _number(name, value, whole=True, least=-1),
    "max_tokens": lambda name, value: _number(name, value, whole=True, least=1),
}  # fmt: skip


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "stop":
            found[name] = _stops(value)
        elif name in _NUMBERS:
            found[name] = _NUMBERS[name](name, value)
        else:
            raise ConfigError(
                f"unknown parameter {quoted(name)}; use one of {', '.join(_NUMBERS)}, stop"
            )
    return found


def _stops(value: Any) -> list[str]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or not 0 < len(value) <= _MAX_STOPS:
        raise ConfigError(f"stop must be a list of 1 to {_MAX_STOPS} texts, got {quoted(value)}")
    for one in value:
        if not one:
            raise ConfigError("stop must have no empty text")
        _checked_text("stop", one)
    return list(value)


def _checked_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _MAX_CHARS:
        raise ConfigError(f"{name} must be a text of at most {_MAX_CHARS} characters")


def _number(name: str, value: Any, *, whole: bool = False, least: float = -math.inf) -> float:
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < least or (whole and number != int(number)):
        raise ConfigError(
            f"{name} must be a {'whole ' if whole else ''}number"
            f"{f' of at least {least:g}' if least > -math.inf else ''}, got {quoted(value)}"
        )
    return int(number) if whole else number
