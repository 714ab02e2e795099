"""The tables of routes, request fields and commands."""

from __future__ import annotations

import msgspec
from tools.from_vllm.markdown import code, codes, table

from quire.cli.app import COMMANDS, Command
from quire.cli.commands.bench import BENCH, SWEEP
from quire.params import NOT_YET
from quire.server.all_endpoints import ENDPOINTS, SWITCHES
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.responses import reading as response_reading
from quire.server.apis.responses.schema import ResponsesRequest
from quire.server.app import ABSENT_ROUTES
from quire.server.requests import reading
from quire.server.requests.fields import GenerationFields

_KINDS = {
    "both": GenerationFields,
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}
_RESPONSES = "/v1/responses"
ABSENT_COMMANDS = {
    "launch render": "`quire serve` has `/v1/chat/completions/render` and `/v1/completions/render`",
    "preload": "weights are mapped from their files, which the system keeps in its cache",
    "snapshot": "a start takes a second; `quire quantize` makes it shorter",
    "download-kernels": "the kernels are in the package",
    "bench forward": "`quire bench latency` measures steps of batches of a given size",
    "bench mm-processor": "the decoding of images is not measured apart",
}
"""Commands of vLLM that Quire does not have, and what to do instead, or why."""


def request_fields() -> str:
    """The fields that have an effect, or are accepted without one."""
    without = {*_refused(), *_without_effect()}
    kinds = {name: kind for kind, struct in _KINDS.items() for name in _own(struct) - without}
    rows = [[code(name), kind, ""] for name, kind in sorted(kinds.items())]
    responses = {field.name for field in msgspec.structs.fields(ResponsesRequest)}
    taken = responses - {*response_reading.REFUSED, *response_reading.WITHOUT_EFFECT}
    rows += [[code(name), _RESPONSES, ""] for name in sorted(taken)]
    rows += [[code(name), "all", "accepted, without effect"] for name in sorted(_without_effect())]
    return table(["field", "requests", "effect"], rows)


def refused_fields() -> str:
    """The fields of which only values without effect are accepted."""
    every = {name: kind for kind, struct in _KINDS.items() for name in _own(struct)}
    refused = _refused()
    rows = [
        [code(name), codes(map(repr, refused[name])), every[name]]
        for name in sorted(refused)
        if name in every
    ]
    for name, (accepted, _) in response_reading.REFUSED.items():
        rows.append([code(name), codes(map(repr, accepted)), _RESPONSES])
    return table(["field", "accepted values", "requests"], rows)


def _own(struct: type[msgspec.Struct]) -> set[str]:
    names = {field.name for field in msgspec.structs.fields(struct)}
    if struct is GenerationFields:
        return names
    return names - {field.name for field in msgspec.structs.fields(GenerationFields)}


def _refused() -> dict[str, tuple[object, ...]]:
    """With the values that are accepted: the server's table, and that of `SamplingParams`."""
    return {**reading.NEUTRAL, **NOT_YET}


def _without_effect() -> set[str]:
    return {*reading.WITHOUT_EFFECT, "user", "metadata"}  # the last two ask for nothing


def routes() -> str:
    """Every endpoint."""
    rows = []
    for endpoint in ENDPOINTS:
        what = (endpoint.handler.__doc__ or "").strip().splitlines()[0]
        switch = SWITCHES[endpoint.switch] if endpoint.switch else ""
        key = "the operator's" if endpoint.for_operator else ""
        rows.append([code(f"{endpoint.method} {endpoint.path}"), what, switch, key])
    return table(["route", "what", "only with", "key"], rows)


def absent_routes() -> str:
    """Table of the routes that answer 404 with a reason."""
    return table(["route", "why"], [[code(path), why] for path, why in ABSENT_ROUTES.items()])


def commands() -> str:
    """Every command."""
    rows = [_row("quire", command) for command in COMMANDS]
    rows += [_row("quire bench", command) for command in BENCH.commands]
    rows += [_row("quire bench sweep", command) for command in SWEEP.commands]
    return table(["command", "what"], rows)


def _row(prog: str, command: Command) -> list[str]:
    return [code(f"{prog} {command.name}"), command.summary]


def absent_commands() -> str:
    """vLLM's other commands."""
    rows = [[code(f"vllm {name}"), text] for name, text in ABSENT_COMMANDS.items()]
    return table(["command", "instead, or why"], rows)
