"""The page, and the places in it where a table stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tools.from_vllm import arguments, interface, metrics

PAGE = Path(__file__).parents[2] / "docs" / "vllm_names.md"
TABLES: dict[str, Callable[[], str]] = {
    "arguments that work": arguments.working_arguments,
    "arguments that are refused": arguments.refused_arguments,
    "arguments without effect": arguments.arguments_without_effect,
    "server options": arguments.server_options,
    "server options that are refused": arguments.refused_options,
    "server options without effect": arguments.options_without_effect,
    "request fields": interface.request_fields,
    "refused fields": interface.refused_fields,
    "routes": interface.routes,
    "absent routes": interface.absent_routes,
    "variables": arguments.variables,
    "variables without effect": arguments.variables_without_effect,
    "metrics": metrics.exposed,
    "absent metrics": metrics.absent,
    "commands": interface.commands,
    "absent commands": interface.absent_commands,
}
"""By the name in the comments around it."""

_PLACE = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def updated(text: str) -> str:
    """The page with every table as it is now. Raises KeyError for an unknown table."""
    return _PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)
