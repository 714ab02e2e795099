"""Regular expressions of the formats and encodings of strings in JSON Schema."""

from __future__ import annotations

_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = (
    rf"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?{_OFFSET}"
    r"|23:59:60(?:\.[0-9]+)?(?:[Zz]|[+-]00:00))"
)
"""Source: RFC 3339, section 5.6. A leap second is the last one of a day in UTC: of the times of
other zones none is taken."""
_CHAR = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_FIRST = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_HOST = r"(?:(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])"
_USER = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@"
_PATH = (
    f"(?://(?:{_USER})?{_HOST}(?::[0-9]*)?(?:/{_CHAR}*)*"
    f"|/(?:{_CHAR}+(?:/{_CHAR}*)*)?|[A-Za-z][A-Za-z0-9+.-]*:(?:/?{_CHAR}+(?:/{_CHAR}*)*)?"
    f"|{_FIRST}+(?:/{_CHAR}*)*|)"
)
"""Source: RFC 3986, appendix A. A reference with a scheme and an authority: `_URI`."""
_TAIL = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*://(?:{_USER})?{_HOST}(?::[0-9]*)?(?:/{_CHAR}*)*"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
EXACT_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "uri-reference": f"(?:{_URI}|{_PATH}){_TAIL}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
_HEX = "[0-9A-Fa-f]"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,57}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join([
    f"(?:{_GROUP}:){{7}}{_GROUP}", f"(?:{_GROUP}:){{1,7}}:", f":(?::{_GROUP}){{1,7}}", "::",
    *(f"(?:{_GROUP}:){{1,{6 - n}}}(?::{_GROUP}){{1,{n + 1}}}" for n in range(6)),
])  # fmt: skip
_DAYS = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
_HOURS = "T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)"
LIBRARY_FORMATS = {
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|[0-9]+W)",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME}",
    "hostname": _HOSTNAME,
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": f"(?:{_IPV6})",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": rf"(?:{_URI}|[A-Za-z][A-Za-z0-9+.-]*:(?:/?{_CHAR}+(?:/{_CHAR}*)*)?){_TAIL}",
}
"""Formats that the library checks itself, for strings that are not written as JSON. A host has at
most four labels of 59 characters, which is less than it may have."""
OTHER_FORMATS = frozenset({
    *LIBRARY_FORMATS,
    "iri", "iri-reference", "idn-email", "idn-hostname", "uri-template", "regex",
})  # fmt: skip
"""Formats of JSON Schema that the library checks, or refuses. Any other format is an annotation."""
ENCODINGS = {"base64": "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"}
