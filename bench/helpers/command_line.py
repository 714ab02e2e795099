"""Options that the benchmarks' command lines share."""

from __future__ import annotations


def named_values(texts: list[str], option: str) -> dict[str, str]:
    """`["NAME=VALUE", ...]` by name. Raises SystemExit that names `option`."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise SystemExit(f"{option} {text!r}: write NAME=VALUE")
        found[name] = value
    return found
