"""The tables of arguments, server options and environment variables."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import defaultdict
from typing import Any

from quire.cli.options import field_documents, flag
from tools.from_vllm.markdown import code, codes, one_line, table

from quire import env
from quire.config.engine_args import EngineArgs
from quire.config.unsupported import UNSUPPORTED
from quire.server.args import ServerArgs

OURS = {"backend", "num_threads", "max_decode_slowdown", "chat_template"}
"""Arguments of `EngineArgs` that vLLM's does not have."""
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9_]+)`")


def working_arguments() -> str:
    """Those of `EngineArgs`."""
    documents = field_documents(EngineArgs)
    rows = []
    for field in dataclasses.fields(EngineArgs):
        whose = " (Quire's own)" if field.name in OURS else ""
        text = one_line(documents[field.name])
        rows.append([code(field.name) + whose, code(_default(field)), text])
    return table(["argument", "default", "what"], rows)


def refused_arguments() -> str:
    """Those of which only values without effect are accepted."""
    by_reason = defaultdict(list)
    for name, entry in UNSUPPORTED.items():
        values = [value for value in entry.neutral if value is not None]
        allowed = f" ({codes(map(repr, values))})" if values else ""
        by_reason[entry.reason].append(code(name) + allowed)
    rows = [["; ".join(names), reason] for reason, names in by_reason.items()]
    return table(["argument (values that are accepted beside `None`)", "why others are not"], rows)


def server_options() -> str:
    """Those of `quire serve` that are no argument of the engine."""
    documents = field_documents(ServerArgs)
    rows = [
        [code(flag(field.name)), code(_default(field)), one_line(documents[field.name])]
        for field in dataclasses.fields(ServerArgs)
    ]
    return table(["option", "default", "what"], rows)


def variables() -> str:
    """Those that Quire reads; a function for each."""
    functions = [one for _, one in inspect.getmembers(env, inspect.isfunction)]
    texts = [one_line(one.__doc__ or "") for one in functions if one.__module__ == env.__name__]
    rows = [[codes(_VARIABLE.findall(text)), text] for text in texts if _VARIABLE.search(text)]
    return table(["variable", "what"], sorted(rows))


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
