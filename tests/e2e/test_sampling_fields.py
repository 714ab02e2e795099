"""Fields that reach the sampler, at all values over HTTP: the right reply, or a 400 that names the
field; never a number that JSON does not have; and no difference to whoever runs beside them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from quire.config.records import LogprobsMode

from .conftest import RunningServer, StartServer, engine_options

VOCAB = 260
CONTEXT = 64
AT_ONCE = 12
MAX = 2**63 - 1
PATHS = {
    "/v1/completions": {"prompt": "ab"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
COMMON = {"max_tokens": 3, "seed": 1, "ignore_eos": True}

NUMBERS = [
    "-101", "-100", "-2", "-1", "-0.5", "0", "0.5", "1", "2", "3", "100", "101", "259", "260",
    str(MAX), str(MAX + 1), "1" + "0" * 400, "1e-300", "1e300", "1e999",
]  # fmt: skip
OTHERS = [
    "NaN", "Infinity", "-Infinity", '"x"', '"1"', "true", "false", "null", "[]", "{}", "[1]",
    "[259]", "[260]", "[-1]", f"[{MAX + 1}]", "[NaN]", '["a"]', '[""]', "[null]", "[[1]]",
    '{"1": -100}', '{"1": 1e300}', '{"1": NaN}', '{"1": null}', '{"260": 1}', '{"-1": 1}',
    '{"x": 1}', '"\\ud800"',
]  # fmt: skip


def span(low: float, high: float, *, whole: bool = False) -> Callable[[Any], bool]:
    """Numbers from one to another; converted as vLLM converts them, from texts and truths too."""

    def is_right(value: Any) -> bool:
        if isinstance(value, str) and value == "1":
            value = 1
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, int | float) or not low <= value <= high:
            return False
        return not whole or value == int(value)

    return is_right


def boolean(value: Any) -> bool:
    return value in (True, False, 0, 1, "1") and not isinstance(value, float)


def id_list(value: Any, least: int = 0) -> bool:
    if not isinstance(value, list) or len(value) < least:
        return False
    return all(isinstance(one, int) and 0 <= one < VOCAB for one in value)


def texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def bias(value: Any) -> bool:
    return isinstance(value, dict) and all(
        key == "1" and isinstance(number, int | float) and not math.isnan(number)
        for key, number in value.items()
    )


FIELDS: dict[str, Callable[[Any], bool]] = {
    "n": span(1, 128, whole=True),
    "temperature": span(0, 2),
    "top_p": span(1e-300, 1),
    "top_k": span(-1, MAX, whole=True),
    "min_p": span(0, 1),
    "seed": span(-(2**63), MAX, whole=True),
    "max_tokens": span(1, CONTEXT - 2, whole=True),
    "min_tokens": span(0, 3, whole=True),
    "presence_penalty": span(-2, 2),
    "frequency_penalty": span(-2, 2),
    "repetition_penalty": span(1e-300, 1e300),
    "prompt_logprobs": span(-1, VOCAB, whole=True),
    "stream_interval": span(1, MAX, whole=True),
    "truncate_prompt_tokens": lambda value: (
        span(-1, CONTEXT, whole=True)(value) and value not in (0, False)
    ),
    "ignore_eos": boolean,
    "include_stop_str_in_output": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "stop": lambda value: value in ("x", "1") or texts(value),
    "stop_token_ids": id_list,
    "allowed_token_ids": lambda value: id_list(value, 1),
    "logit_bias": bias,
    "bad_words": texts,
    "thinking_token_budget": lambda value: value == -1,
    "watermarking": lambda value: boolean(value) and not value,
    "repetition_detection": lambda value: value == {},
}
OF_COMPLETIONS = {"logprobs": span(-1, VOCAB, whole=True)}
OF_CHATS = {
    "top_logprobs": span(-1, VOCAB, whole=True),
    "max_completion_tokens": span(1, CONTEXT - 20, whole=True),
}


def options_of(tiny_model: Path, mode: str) -> dict[str, Any]:
    return engine_options(
        tiny_model, backend="cpu", max_model_len=CONTEXT, logprobs_mode=mode, max_logprobs=-1
    )


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[RunningServer]:
    """It reports logits, of which many are minus infinity."""
    running = RunningServer(options_of(tiny_model, "processed_logits"), {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def strict(text: str) -> Any:
    """JSON as the standard has it."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def replies_of(reply: httpx.Response) -> list[Any]:
    """The reply, or the events of a stream."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        *events, last = [part[6:] for part in reply.text.split("\n\n") if part]
        assert last == "[DONE]"
        return [strict(event) for event in events]
    return [strict(reply.text)]


async def all_of(
    tasks: Iterable[Callable[[httpx.AsyncClient], Awaitable[Any]]], client: httpx.AsyncClient
) -> list[Any]:
    """Some at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(task: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async with gate:
            return await task(client)

    return await asyncio.gather(*map(one, tasks))


NEIGHBOURS: list[dict[str, Any]] = [
    {"prompt": "neighbour", "max_tokens": 40, "seed": 3, "logprobs": 2},
    {"prompt": "another", "max_tokens": 40, "temperature": 0, "logprobs": 1},
    {"prompt": "third", "max_tokens": 40, "seed": 4, "presence_penalty": 1, "top_k": 20,
     "logprobs": 0},
]  # fmt: skip


async def neighbours(client: httpx.AsyncClient) -> list[Any]:
    replies = [client.post("/v1/completions", json=body) for body in NEIGHBOURS]
    return [one.json()["choices"] for one in await asyncio.gather(*replies)]


def beside_neighbours(
    server: RunningServer, tasks: list[Callable[[httpx.AsyncClient], Awaitable[Any]]]
) -> list[Any]:
    """Runs the tasks while others are served, who must not notice; the server is well after it."""

    async def main() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            alone = await neighbours(client)
            running = asyncio.ensure_future(all_of(tasks, client))
            rounds = 0
            while not running.done() or not rounds:
                assert await neighbours(client) == alone
                rounds += 1
            assert (await client.get("/health")).status_code == 200
            return await running

    return asyncio.run(main())


def task_of(path: str, given: dict[str, Any], text: str) -> Callable[..., Awaitable[Any]]:
    """Posts a body of `given` and of `text`, further fields as JSON."""
    parts = [json.dumps(given)[1:-1], text]
    body = "{" + ", ".join(part for part in parts if part) + "}"
    headers = {"content-type": "application/json"}
    return lambda client: client.post(path, content=body, headers=headers)


def fields_of(path: str) -> dict[str, Callable[[Any], bool]]:
    return FIELDS | (OF_CHATS if "chat" in path else OF_COMPLETIONS)


def base_of(path: str, *names: str) -> dict[str, Any]:
    """A request without these fields."""
    given = {**PATHS[path], **COMMON}
    if "top_logprobs" in names:
        given["logprobs"] = True
    return {name: value for name, value in given.items() if name not in names}


def check_refused(reply: httpx.Response, *names: str) -> None:
    error = strict(reply.text)["error"]
    assert (reply.status_code, error["code"]) == (400, 400), (names, error)
    named = (error["param"] or "").split("[")[0].split(".")[0]
    assert named in names, (names, error)


@pytest.mark.long
def test_each_field_at_each_value(server: RunningServer) -> None:
    cases = [
        (path, name, text)
        for path in PATHS
        for name in fields_of(path)
        for text in [*NUMBERS, *OTHERS]
    ]
    tasks = [task_of(path, base_of(path, name), f'"{name}": {text}') for path, name, text in cases]
    for (path, name, text), reply in zip(cases, beside_neighbours(server, tasks), strict=True):
        value = json.loads(text)  # takes NaN, and makes 1e999 infinite
        if value is None or fields_of(path)[name](value):
            assert reply.status_code == 200, (path, name, text, reply.text)
            replies_of(reply)
        else:
            check_refused(reply, name)


EDGES: dict[str, list[Any]] = {
    "n": [1, 3],
    "temperature": [0, 1e-300, 2],
    "top_p": [1e-300, 1],
    "top_k": [1, MAX],
    "min_p": [0, 1],
    "seed": [-(2**63), MAX],
    "max_tokens": [1, 44],
    "min_tokens": [0, 1],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "repetition_penalty": [1e-300, 1e300],
    "prompt_logprobs": [0, VOCAB],
    "ignore_eos": [False],
    "stop": ["\n", [*"abcdefghijklmnop"]],
    "stop_token_ids": [[0, 259], [*range(VOCAB)]],
    "allowed_token_ids": [[0], [259, 258], [*range(VOCAB)]],
    "logit_bias": [{"0": -1e300}, {str(token): 100 for token in range(0, VOCAB, 2)}],
    "bad_words": [["a"], [chr(code) for code in range(33, 120)]],
    "truncate_prompt_tokens": [1, -1],
    "logprobs": [0, VOCAB],
    "echo": [True],
}
"""Values that are allowed, the least and the largest that change anything."""


def may_be_refused(one: str, value: Any, other: str, other_value: Any) -> bool:
    """Whether two values that are allowed mean nothing together."""
    both = {one: value, other: other_value}
    if both.get("n") == 3:
        return both.get("temperature", 1) < 1e-5
    if one == "allowed_token_ids" or other == "allowed_token_ids":
        return "bad_words" in both or both.get("min_tokens") == 1
    return both.get("min_tokens") == 1 and both.get("stop_token_ids") == [*range(VOCAB)]


@pytest.mark.long
def test_each_pair_of_fields_at_their_edges(server: RunningServer) -> None:
    cases = [
        (first, one, second, other)
        for first, second in itertools.combinations(EDGES, 2)
        for one, other in itertools.product(EDGES[first], EDGES[second])
    ]
    path = "/v1/completions"
    tasks = []
    for index, (first, one, second, other) in enumerate(cases):
        streams = index % 2 == 1 and "prompt_logprobs" not in (first, second)
        given = {**base_of(path, first, second), first: one, second: other}
        tasks.append(task_of(path, {"logprobs": 1, **given, "stream": streams}, ""))
    for case, reply in zip(cases, beside_neighbours(server, tasks), strict=True):
        if reply.status_code != 200 and may_be_refused(*case):
            check_refused(reply, case[0], case[2])
            continue
        assert reply.status_code == 200, (case, reply.text)
        check_choices(replies_of(reply), dict(zip(case[::2], case[1::2], strict=True)))


def check_choices(replies: list[Any], given: dict[str, Any]) -> None:
    """What any reply to such a request has."""
    parts = [choice for reply in replies for choice in reply["choices"]]
    by_index: dict[int, list[Any]] = {}
    for part in parts:
        by_index.setdefault(part["index"], []).append(part)
    assert sorted(by_index) == [*range(given.get("n", 1))]
    for choice in by_index.values():
        assert choice[-1]["finish_reason"] in ("stop", "length")
        for logprobs in filter(None, (part["logprobs"] for part in choice)):
            lists = [logprobs[name] for name in ("tokens", "token_logprobs", "text_offset")]
            assert len({len(each) for each in lists}) == 1
            echoed = bool(given.get("echo"))
            numbers = logprobs["token_logprobs"][echoed:]
            best = [each.values() for each in logprobs["top_logprobs"] if each]
            for number in itertools.chain(numbers, *best):
                assert number is None or math.isfinite(number), given
            assert echoed or None not in numbers


EXTREMES: list[dict[str, Any]] = [
    {"logit_bias": {"1": -100, "2": 100}},
    {"allowed_token_ids": [7]},
    {"top_k": 1, "bad_words": ["a"]},
    {"repetition_penalty": 1e-300, "logit_bias": {str(token): 100 for token in range(VOCAB)}},
    {"repetition_penalty": 1e300, "logit_bias": {str(token): -100 for token in range(VOCAB)}},
    {"temperature": 0.01, "repetition_penalty": 1e-300, "frequency_penalty": 2},
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("mode", get_args(LogprobsMode))
def test_every_reply_is_json(start_server: StartServer, tiny_model: Path, mode: str) -> None:
    """And has a number wherever one is due."""
    server = start_server(options_of(tiny_model, mode))
    bodies = [
        (path, {**fields, **extreme, "max_tokens": 3, "seed": 1, "stream": stream,
                **({} if stream else {"prompt_logprobs": -1}), **which})
        for path, fields in PATHS.items()
        for which in [{"logprobs": True, "top_logprobs": -1} if "chat" in path else
                      {"logprobs": -1, "echo": True}]
        for extreme in EXTREMES
        for stream in (False, True)
    ]  # fmt: skip
    for (_, body), reply in zip(
        bodies, beside_neighbours(server, [task_of(*one, "") for one in bodies]), strict=True
    ):
        assert reply.status_code == 200, (body, reply.text)
        numbers = [
            number for each in replies_of(reply) for number in logprobs_in(each.get("choices"))
        ]
        assert len(numbers) > VOCAB
        assert all(type(number) is float for number in numbers), body


def logprobs_in(value: Any) -> Iterator[Any]:
    """Every log-probability, wherever it is; but not that of a prompt's first token."""
    if isinstance(value, list):
        for one in value:
            yield from logprobs_in(one)
    elif isinstance(value, dict):
        for name, part in value.items():
            if name == "logprob":
                yield part
            elif name == "top_logprobs" and isinstance(part, list):
                yield from (
                    number for each in part if each and "token" not in each
                    for number in each.values()
                )  # fmt: skip
                yield from logprobs_in(part)
            elif name == "token_logprobs":
                yield from part[part[0] is None :]
            else:
                yield from logprobs_in(part)
