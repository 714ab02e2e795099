"""Removes secrets from texts before anyone sees them; `redacted_settings` has configurations.

The only redactor: the log, errors (`QuireError`), uncaught exceptions, `/server_info`, `quire
explain` and `quire collect-env` use it. It knows a secret by its place: the user part of a URL, a
query field or a setting with the name of a secret, an `Authorization` header. Time is linear in the
length of a text. Imports nothing of Quire.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_WORDS = (
    r"passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|hf[_-]?token|"
    r"(?:auth|access|bearer|session|security)[_-]?token|credential|authorization|signature"
)
_NAME = re.compile(_WORDS + r"|^token$|(?:^|[_-])(?:pass|pwd|key|sig|auth)$", re.I)
"""Names of settings and query fields that have secret values."""
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


def is_secret(name: object) -> bool:
    """Whether a setting of this name has a secret value."""
    return isinstance(name, str) and _NAME.search(name) is not None


def _field(found: re.Match[str]) -> str:
    mark, name = found[1], found[2]
    return f"{mark}{name}={HIDDEN}" if is_secret(name) else found[0]
