"""Removes secrets from texts and configurations before anyone sees them.

The only redactor: the log, errors (`QuireError`), uncaught exceptions, `/server_info`, `quire
explain` and `quire collect-env` use it. It knows a secret by its place: the user part of a URL, a
query field or a setting with the name of a secret, an `Authorization` header. Time is linear in the
length of a text. Imports nothing of Quire.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"
_WORDS = (
    r"passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|hf[_-]?token|"
    r"(?:auth|access|bearer|session|security)[_-]?token|credential|authorization|signature"
)
_NAME = re.compile(_WORDS + r"|^token$|(?:^|[_-])(?:pass|pwd|key|sig|auth)$", re.I)
"""Names of settings and query fields that have secret values."""
_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASS|HEADERS|CREDENTIAL|AUTH", re.I)
"""The same for environment variables."""
_URL = re.compile(r"://[^\s\"'<>]*")
_USER = re.compile(r"(?<![\w:@])([\w.+-]{0,64}:)[^\s/@\"']{1,256}@(?=[\w\[])")
"""The user part of a URL whose scheme is missing."""
_QUERY_FIELD = re.compile(r"([?&])([^=&#\s\"']{1,100})=[^&#\s\"']*")
_SETTING = re.compile(
    rf"((?:{_WORDS})[\w-]{{0,40}}(?:[\"']\s{{0,4}}:|\s{{0,4}}=)\s{{0,4}}"
    r"|authorization:\s{0,4}(?=\S))"
    r"(?:(?:bearer|basic)\s{1,4})?"
    r"(?!None\b|null\b|True\b|False\b|true\b|false\b)"
    r"(?:[(\[][^)\]\n]*[)\]]|\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&()\[\]}\"']+)",
    re.I,
)
_BEARER = re.compile(r"(\bbearer\s{1,4})[\w.~+/=-]{8,}", re.I)


def redact(text: str) -> str:
    """The text without secrets."""
    if "://" in text:
        text = _URL.sub(lambda found: redact_url(found[0]), text)
    if "@" in text:
        text = _USER.sub(rf"\1{HIDDEN}@", text)
    if "?" in text or "&" in text:
        text = _QUERY_FIELD.sub(_field, text)
    if "=" in text or ":" in text:
        text = _SETTING.sub(rf"\1{HIDDEN}", text)
    return _BEARER.sub(rf"\1{HIDDEN}", text) if "earer" in text or "EARER" in text else text


def redact_url(url: str) -> str:
    """A URL without password and without the values of secret fields of its query.

    A user part without a colon is hidden too: tokens are given so. A password may have any
    character, so the last `@` ends it.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return redact(url)
    user, at, host = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = f"{name}:{HIDDEN}" if colon else HIDDEN
    return f"{scheme}://{shown if at else ''}{at}{_QUERY_FIELD.sub(_field, host)}"


def redacted(value: Any) -> Any:
    """A JSON value without secrets: texts at any depth, and all values with names of secrets."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if is_secret(name) and _holds_text(inner) else redacted(inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(inner) for inner in value]
    return value


def is_secret(name: object) -> bool:
    """Whether a setting of this name has a secret value."""
    return isinstance(name, str) and _NAME.search(name) is not None


def environment(prefixes: Iterable[str]) -> dict[str, str]:
    """The environment variables whose names begin so, without secrets; sorted."""
    starts = tuple(prefixes)
    return {
        name: "(set, not shown)" if _VARIABLE.search(name) else redact(value)
        for name, value in sorted(os.environ.items())
        if name.startswith(starts)
    }


def shown(record: Any) -> str:
    """The `repr` of a dataclass record without secrets."""
    fields = (
        f"{one.name}={_shown_field(one.name, getattr(record, one.name))}"
        for one in dataclasses.fields(record)
        if one.repr
    )
    return f"{type(record).__qualname__}({', '.join(fields)})"


def _shown_field(name: str, value: object) -> str:
    return repr(HIDDEN) if is_secret(name) and value else redact(repr(value))


def _holds_text(value: object) -> bool:
    """Whether a value can be a secret: texts and numbers can, switches and None cannot."""
    return value is not None and not isinstance(value, bool)


def _field(found: re.Match[str]) -> str:
    mark, name = found[1], found[2]
    return f"{mark}{name}={HIDDEN}" if is_secret(name) else found[0]
