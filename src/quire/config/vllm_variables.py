"""The environment variables of vLLM, and which of them work in Quire.

Each `VLLM_` variable belongs to one of four groups: it works; it requests behaviour that Quire
always has; it has no effect, which is warned about once; or vLLM does not know it either. The
table is `quire/vllm/tables/variables.json`; the functions that read variables are in `env`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from quire.config.vllm_names import vllm_table
from quire.env import is_true
from quire.errors import ConfigError, quoted
from quire.suggest import nearest

Effect = Literal["works", "always so", "refused"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of vLLM, and how Quire treats it."""

    name: str
    effect: Effect
    text: str
    """Setting of the variable, the behaviour that always applies, or the reason for refusal."""
    option: str | None = None
    """The server option (a number) whose default the variable sets."""


@cache
def variables() -> Mapping[str, Variable]:
    """The variables that work, always apply or are refused, by name."""
    table = vllm_table("variables")
    options = table["server_options"]
    return {
        **{n: Variable(n, "works", text, options.get(n)) for n, text in table["works"].items()},
        **{n: Variable(n, "refused", text) for n, text in table["refused"].items()},
        **{
            name: Variable(name, "always so", text)
            for text, names in table["always_so"].items()
            for name in names
        },
    }


def variables_without_effect() -> frozenset[str]:
    """All others that vLLM has, or had: many scripts still set some that it has removed."""
    table = vllm_table("variables")
    return frozenset(table["without_effect"] + table["dropped"])


@dataclass(frozen=True, slots=True)
class Unheard:
    """Variables that are set but have no effect."""

    without_effect: tuple[str, ...]
    unknown: Mapping[str, str | None]
    """Variables that vLLM does not know either, with the nearest known name."""


def unheard_variables() -> Unheard:
    """Find variables without effect. Raises ConfigError for a refused variable."""
    found = sorted(name for name in os.environ if name.startswith("VLLM_"))
    if not found:
        return Unheard((), {})
    for name in found:
        entry = variables().get(name)
        if entry is not None and entry.effect == "refused" and is_true(name):
            raise ConfigError(f"{name}={quoted(os.environ[name])}: {entry.text}; unset it")
    without_effect = variables_without_effect()
    known = {*variables(), *without_effect}
    return Unheard(
        tuple(name for name in found if name in without_effect),
        {name: nearest(name, known) for name in found if name not in known},
    )


def server_defaults() -> dict[str, float]:
    """Defaults of server options from the environment. Raises ConfigError if one is not a
    number."""
    found: dict[str, float] = {}
    for entry in variables().values():
        text = os.environ.get(entry.name, "").strip()
        if entry.option is None or not text:
            continue
        try:
            found[entry.option] = int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            raise ConfigError(
                f"{entry.name} must be a number ({entry.text}), got {quoted(text)}"
            ) from None
        if not found[entry.option] > 0:
            raise ConfigError(
                f"{entry.name} must be more than 0 ({entry.text}), got {quoted(text)}; unset it"
            )
    return found
