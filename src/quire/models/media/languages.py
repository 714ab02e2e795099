"""Languages of speech: the codes that Whisper was trained with, and their English names."""

from __future__ import annotations

from collections.abc import Collection

from quire.errors import PromptError, quoted

_PAIRS = (
    "af:afrikaans am:amharic ar:arabic as:assamese az:azerbaijani ba:bashkir be:belarusian "
    "bg:bulgarian bn:bengali bo:tibetan br:breton bs:bosnian ca:catalan cs:czech cy:welsh "
    "da:danish de:german el:greek en:english es:spanish et:estonian eu:basque fa:persian "
    "fi:finnish fo:faroese fr:french gl:galician gu:gujarati ha:hausa he:hebrew hi:hindi "
    "hr:croatian ht:haitian hu:hungarian hy:armenian id:indonesian is:icelandic it:italian "
    "ja:japanese ka:georgian kk:kazakh km:khmer kn:kannada ko:korean la:latin "
    "lb:luxembourgish ln:lingala lo:lao lt:lithuanian lv:latvian mg:malagasy mi:maori "
    "mk:macedonian ml:malayalam mn:mongolian mr:marathi ms:malay mt:maltese my:burmese "
    "ne:nepali nl:dutch nn:nynorsk no:norwegian oc:occitan pa:punjabi pl:polish ps:pashto "
    "pt:portuguese ro:romanian ru:russian sa:sanskrit sd:sindhi si:sinhala sk:slovak "
    "sl:slovenian sn:shona so:somali sq:albanian sr:serbian su:sundanese sv:swedish "
    "sw:swahili ta:tamil te:telugu tg:tajik th:thai tk:turkmen tl:tagalog tr:turkish tt:tatar "
    "uk:ukrainian ur:urdu uz:uzbek vi:vietnamese yi:yiddish yo:yoruba zh:chinese "
    "haw:hawaiian jw:javanese yue:cantonese"
)
NAMES: dict[str, str] = dict(pair.split(":") for pair in _PAIRS.split())
"""English names, by code."""
STANDARD = frozenset(code for code in NAMES if code not in ("haw", "jw", "yue"))
"""Codes of ISO 639-1."""


def code_of(language: str, known: Collection[str]) -> str | None:
    """The code of a language that is given by its code or by its English name; None if it is not a
    `known` one."""
    word = language.strip().lower()
    found = next((code for code, name in NAMES.items() if word in (code, name)), word)
    return found if found in known else None


def asked_code(language: str, known: Collection[str]) -> str:
    """The code of the language that a request names. Raises PromptError, which lists the codes."""
    code = code_of(language, known)
    if code is None:
        name = next((NAMES[one] for one in sorted(known) if one in NAMES), "english")
        raise PromptError(
            f"Unsupported language: {quoted(language)}. Must be one of {sorted(known)}, or the "
            f"English name of one of them, such as {name!r}.",
            parameter="language",
        )
    return code
