"""The tables of arguments, server options and environment variables."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.from_vllm.markdown import code, codes, one_line, table

from quire import env
from quire.config.command_line.options import field_documents, flag
from quire.config.engine_args import AsyncEngineArgs
from quire.config.vllm_names import Unsupported, unsupported
from quire.config.vllm_variables import variables as known_variables
from quire.config.vllm_variables import variables_without_effect as names_without_effect
from quire.server.args import ServerArgs

VLLM: dict[str, Any] = json.loads((Path(__file__).parent / "vllm_arguments.json").read_text())
"""The arguments of vLLM's `AsyncEngineArgs` with their defaults, the options of its
`add_cli_args`, and the arguments that versions since 0.5 had and the current one does not."""
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9_]+)`")


def working_arguments() -> str:
    """Table of the arguments of `EngineArgs` and `AsyncEngineArgs`."""
    documents = field_documents(AsyncEngineArgs)
    rows = []
    for field in dataclasses.fields(AsyncEngineArgs):
        whose = "" if field.name in VLLM["arguments"] else " (Quire's own)"
        text = one_line(documents[field.name])
        rows.append([code(field.name) + whose, _default(field), text])
    return table(["argument", "default", "what"], rows)


def refused_arguments() -> str:
    """Table of arguments of which only values without effect are accepted."""
    return _refused(unsupported().values())


def arguments_without_effect() -> str:
    """Table of arguments of which every value is accepted."""
    return _without_effect(unsupported().values())


def refused_options() -> str:
    """The same of the server's options."""
    return _refused(unsupported("server_options").values(), flag)


def options_without_effect() -> str:
    """The same of the server's options."""
    return _without_effect(unsupported("server_options").values(), flag)


def _refused(entries: Iterable[Unsupported], spelled: Callable[[str], str] = str) -> str:
    rows = []
    for entry in entries:
        if entry.is_refused:
            values = [value for value in (entry.default, *entry.also) if value is not None]
            rows.append([code(spelled(entry.name)), codes(map(repr, values)), entry.reason])
    return table(["name", "accepted values", "why others are not"], rows)


def _without_effect(entries: Iterable[Unsupported], spelled: Callable[[str], str] = str) -> str:
    rows = [[code(spelled(one.name)), one.reason] for one in entries if not one.is_refused]
    return table(["name", "why"], rows)


def server_options() -> str:
    """Options of `quire serve` that are not engine arguments."""
    documents = field_documents(ServerArgs)
    rows = [
        [code(flag(field.name)), _default(field), one_line(documents[field.name])]
        for field in dataclasses.fields(ServerArgs)
    ]
    return table(["option", "default", "what"], rows)


def variables() -> str:
    """Those that Quire reads, a function for each, and those of vLLM that work."""
    functions = [one for _, one in inspect.getmembers(env, inspect.isfunction)]
    texts = [one_line(one.__doc__ or "") for one in functions if one.__module__ == env.__name__]
    rows = [[code(name), text] for text in texts for name in _own(text)]
    rows += [
        [code(name), entry.text + (f" (`{flag(entry.option)}`)" if entry.option else "")]
        for name, entry in known_variables().items()
        if entry.effect == "works"
    ]
    return table(["variable", "what"], sorted(rows))


def _own(text: str) -> list[str]:
    names = _VARIABLE.findall(text)
    return [name for name in names if "_" in name and not name.startswith("VLLM_")]


def variables_without_effect() -> str:
    """vLLM's others."""
    rows = [
        [code(name), ("refused: " if entry.effect == "refused" else "in any case ") + entry.text]
        for name, entry in known_variables().items()
        if entry.effect != "works"
    ]
    unknown = "no effect; a warning names it if it is set"
    rows += [[code(name), unknown] for name in names_without_effect()]
    return table(["variable", "what"], sorted(rows))


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return code(field.default_factory())
    return code(field.default) if field.default not in ("", None, ()) else ""
