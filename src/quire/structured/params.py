"""`StructuredOutputsParams`: constraints on the text of a request.

Names, order of the fields and messages are vLLM's. Checks only single fields;
`limits` and `trial` check the rest when a request arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import msgspec

from quire.errors import ConfigError, QuireError, RequestError, quoted
from quire.param_checks import LISTS, has_surrogates
from quire.suggest import did_you_mean

OWN_BACKENDS = (None, "auto", "guidance")
"""There is one: llguidance, which vLLM calls `guidance`."""
_BACKENDS = ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")
"""vLLM's. The choice has no effect: llguidance follows all that the others do."""


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """vLLM's fields. Raises ConfigError for what there is not."""

    backend: str = "auto"
    """A name of vLLM's, without effect: there is one, `guidance`."""
    disable_any_whitespace: bool = False
    """JSON without optional white space, for all requests."""
    disable_additional_properties: bool = True
    """Whether JSON objects have no properties but those that their schema names, where it names
    some and does not say otherwise. A request may say the opposite."""
    reasoning_parser: str = ""
    """Name of the format in which the model marks its reasoning; empty: it is found from the
    checkpoint."""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False
    """Whether grammars hold from the begin of a reply, for the reasoning too."""

    def __post_init__(self) -> None:
        check_backend("structured_outputs_config.backend", self.backend, ConfigError)
        for name in (
            "disable_any_whitespace",
            "disable_additional_properties",
            "enable_in_reasoning",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(
                    f"structured_outputs_config.{name} must be True or False, got {quoted(value)}"
                )
        if self.reasoning_parser_plugin not in ("", None):
            raise ConfigError(
                "structured_outputs_config.reasoning_parser_plugin="
                f"{quoted(self.reasoning_parser_plugin)} is not supported: formats are part of "
                "Quire; leave it out"
            )

    @classmethod
    def of(cls, given: Mapping[str, object] | None) -> StructuredOutputsConfig:
        """From what a user gave. Raises ConfigError for unknown names."""
        names = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in names:
                raise ConfigError(
                    f"structured_outputs_config has no field {quoted(name)}"
                    f"{did_you_mean(name, names)}"
                )
        kept = {name: value for name, value in (given or {}).items() if value is not None}
        return cls(**kept)  # type: ignore[arg-type]


def check_backend(name: str, value: object, error: Callable[[str], QuireError]) -> None:
    """Raises what `error` makes of a message, for a name that is not one of vLLM's backends. Its
    older versions have options after a colon, as in `xgrammar:no-fallback`."""
    known = value.partition(":")[0] in _BACKENDS if isinstance(value, str) else value is None
    if not known:
        hint = did_you_mean(value, _BACKENDS) if isinstance(value, str) else ""
        raise error(
            f"{name}={quoted(value)} is not known; use {', '.join(_BACKENDS[:-1])} or "
            f"{_BACKENDS[-1]}: structured outputs come from llguidance with any of them{hint}"
        )


KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The fields of which a request has exactly one."""
FIELD = "structured_outputs"
"""The field of `SamplingParams`, which errors name."""
_TEXTS = ("regex", "grammar", "structural_tag", "whitespace_pattern")
_NOT_EMPTY = ("json", "grammar", "structural_tag")


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True
):
    """Exactly one of the kinds `json`, `regex`, `choice`, `grammar`, `json_object` and
    `structural_tag`, and how it is meant. Raises RequestError."""

    json: str | dict[str, Any] | None = None
    """A JSON schema, as text or parsed."""
    regex: str | None = None
    """The whole text matches it. In the notation of Rust's regex crate, without `\\b` and the
    like."""
    choice: list[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """A context-free grammar: Lark's notation, or GBNF."""
    json_object: bool | None = None
    """True: any JSON object."""
    disable_any_whitespace: bool = False
    """JSON without optional white space."""
    disable_additional_properties: bool | None = None
    """Whether JSON objects have no properties but those that the schema names, where it names some
    and does not say otherwise. None: as the engine's settings say; without any, they have none."""
    whitespace_pattern: str | None = None
    """The regular expression of the white space in JSON."""
    structural_tag: str | None = None
    """JSON that names tags in a free text, and the schemas of what is between them."""
    backend: str | None = None
    """A name of vLLM's, without effect: there is one."""

    def __post_init__(self) -> None:
        check_backend(f"{FIELD}.backend", self.backend, RequestError)
        given = {name: value for name in KINDS if (value := getattr(self, name)) is not None}
        if len(given) != 1:
            how = "only use one kind" if given else "use one kind"
            what = "multiple are specified" if given else "none are specified"
            must = "can" if given else "must"
            raise RequestError(
                f"You {must} {how} of structured outputs constraint but {what}: "
                f"{quoted(given or dict.fromkeys(KINDS))}",
                parameter=FIELD,
            )
        self._check_types()
        self._check_contents()

    @property
    def kind(self) -> str:
        """The field that is given."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def all_constraints_none(self) -> bool:
        """vLLM's question whether no kind is given: never."""
        return False

    def all_non_structural_tag_constraints_none(self) -> bool:
        """Whether the kind is `structural_tag`."""
        return self.structural_tag is not None

    def _check_types(self) -> None:
        if self.json is not None and not isinstance(self.json, (str, dict)):
            hint = ""
            if hasattr(self.json, "model_json_schema"):
                hint = "; of a pydantic model: its model_json_schema()"
            _refuse("json", self.json, f"must be a JSON schema, as a dict or a text{hint}")
        for name in _TEXTS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                _refuse(name, value, "must be a text")
            if has_surrogates(value):
                _refuse(name, value, "must be valid Unicode")
        if self.choice is not None:
            if not isinstance(self.choice, LISTS) or not all(
                isinstance(text, str) and not has_surrogates(text) for text in self.choice
            ):
                _refuse("choice", self.choice, "must be a list of texts")
            msgspec.structs.force_setattr(self, "choice", list(self.choice))
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            value = getattr(self, name)
            may_miss = name != "disable_any_whitespace" and value is None
            if not isinstance(value, bool) and not may_miss:
                _refuse(name, value, "must be True or False")

    def _check_contents(self) -> None:
        for name in _NOT_EMPTY:
            value = getattr(self, name)
            if isinstance(value, str) and not value.strip():
                raise _error(name, value, f"{FIELD}.{name} cannot be an empty string")
        if self.choice is not None and not self.choice:
            raise _error("choice", self.choice, "Choice '[]' cannot be an empty list")
        if self.json_object is False:
            raise _error(
                "json_object",
                False,
                f"{FIELD}.json_object must be True if set; omit {FIELD} to disable structured "
                "outputs",
            )
        for name in ("regex", "whitespace_pattern"):
            if "\0" in (getattr(self, name) or ""):
                message = f"{FIELD}.{name} must not contain a NUL character ('\\x00')"
                raise _error(name, None, message)
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            _refuse(
                "whitespace_pattern",
                self.whitespace_pattern,
                "has no use with disable_any_whitespace; give one of them",
            )


class GuidedDecodingParams(StructuredOutputsParams, frozen=True, kw_only=True):
    """The same under its older name, for `SamplingParams(guided_decoding=...)`."""


def structured_outputs_of(given: object) -> StructuredOutputsParams | None:
    """From an object or, as JSON has it, a dict. Raises RequestError."""
    if given is None or (
        isinstance(given, StructuredOutputsParams) and type(given) is StructuredOutputsParams
    ):
        return given
    names = StructuredOutputsParams.__struct_fields__
    if isinstance(given, GuidedDecodingParams):
        kept = [name for name in names if name != "backend"]
        return StructuredOutputsParams(**{name: getattr(given, name) for name in kept})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise RequestError(
            f"{FIELD} must be StructuredOutputsParams or a dict of its fields, got {quoted(given)}",
            parameter=FIELD,
            value=given,
        )
    for name in given:
        if name not in names:
            raise RequestError(
                f"{FIELD} has no field {quoted(name)}{did_you_mean(name, names)}",
                parameter=f"{FIELD}.{name:.64}",
            )
    flags = {name for name in names if name.startswith("disable_")}
    return StructuredOutputsParams(
        **{name: value for name, value in given.items() if value is not None or name not in flags}
    )


def _error(name: str, value: object, message: str) -> RequestError:
    return RequestError(message, parameter=f"{FIELD}.{name}", value=value)


def _refuse(name: str, value: object, rule: str) -> NoReturn:
    raise _error(name, value, f"{FIELD}.{name} {rule}, got {quoted(value)}")
