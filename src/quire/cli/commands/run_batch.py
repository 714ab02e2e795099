"""Answer a file of OpenAI batch requests: one JSON request per line in, one reply per line out.

Many lines run at the same time, as on a server. Replies are written in the order of the lines. An
invalid line gets an error as its reply and does not affect the others. Files may be http URLs.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import json
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from quire.cli.batch_files import local_input, local_output
from quire.cli.metrics_server import serve_metrics
from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.groups import COMMON
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.engine_args import AsyncEngineArgs
from quire.env.vllm import server_defaults
from quire.errors import ConfigError
from quire.files import replacing
from quire.server.args import ServerArgs
from quire.server.unsupported_flags import UNSUPPORTED_FLAGS, check_flags
from quire.units import MiB

if TYPE_CHECKING:
    from quire.cli.in_process import InProcessServer

PATHS = ("/v1/chat/completions", "/v1/completions")
_MAX_LINE_BYTES = 16 * MiB
_DEFAULTS = {"max_num_queued_reqs": 1_000_000, "disable_log_stats": True}
_QUIET = {"ui": False, "disable_fastapi_docs": True, "disable_access_log": True}
_OF_THE_SERVER = (
    "response_role", "chat_template_content_format", "default_chat_template_kwargs",
    "exclude_tools_when_tool_choice_none", "return_tokens_as_token_ids",
    "enable_per_request_metrics", "fingerprint_mode", "fingerprint_value", "enable_log_outputs",
    "max_log_len",
)  # fmt: skip
"""Options of the server that shape replies and the log."""


@dataclass(slots=True)
class _Counts:
    """What became of the lines."""

    total: int = 0
    failed: int = 0
    nameless: int = 0
    """Lines without a custom_id, so that no reply can be matched to them."""


def configure(parser: Parser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("-i", "--input-file", metavar="FILE", help="Requests, one JSON per line; a path or URL.")
    add("-o", "--output-file", metavar="FILE", help="Where the replies go; a path or URL (PUT).")
    add("--output-tmp-dir", metavar="DIR", help="Where replies lie before they go to a URL.")
    add("--disable-tqdm", action="store_true", help="No progress bar.")
    add("--enable-metrics", action="store_true", help="Serve Prometheus metrics meanwhile.")
    add("--host", "--url", dest="metrics_host", default="127.0.0.1", help="Host of the metrics.")
    add("--port", dest="metrics_port", type=int, default=8000, help="Port of the metrics.")
    fields = {field.name for field in dataclasses.fields(ServerArgs)}
    add_options(parser, ServerArgs, title="Frontend", skip=fields - set(_OF_THE_SERVER))
    add_engine_options(parser, record=AsyncEngineArgs, defaults=_DEFAULTS)
    add_unsupported(parser, UNSUPPORTED_FLAGS)
    parser.shorten({"Frontend"}, COMMON)


def execute(args: argparse.Namespace) -> int:
    """Answers every line. Returns 1 if there is a line to which no reply can be matched."""
    from quire.cli.in_process import InProcessServer

    if not args.input_file or not args.output_file:
        raise ConfigError("give both files: quire run-batch -i IN.jsonl -o OUT.jsonl")
    check_flags(vars(args))
    server_args = read(ServerArgs, args, defaults={**_QUIET, **server_defaults()})
    wanted = engine_args(args, record=AsyncEngineArgs, defaults=_DEFAULTS)
    target = local_output(args.output_file, args.output_tmp_dir)
    with local_input(args.input_file) as source, target as output:
        server = InProcessServer(wanted, server_args)
        try:
            counts = asyncio.run(_answer_file(server, source, output, args))
        finally:
            server.close()
    answered = counts.total - counts.failed
    print(f"{answered} of {counts.total} requests answered; replies: {args.output_file}")
    if counts.failed:
        print(f"{counts.failed} failed; each has its error in the replies", file=sys.stderr)
    if counts.nameless:
        print(
            f"{counts.nameless} of these have no custom_id: their errors have custom_id null",
            file=sys.stderr,
        )
    return 1 if counts.nameless else 0


async def _answer_file(
    server: InProcessServer, source: Path, output: Path, args: argparse.Namespace
) -> _Counts:
    """Writes the replies. The file appears when it is complete."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    counts = _Counts()
    at_once = 2 * server.engine.config.scheduler.max_num_seqs
    if args.enable_metrics:
        metrics = await serve_metrics(server.metrics, args.metrics_host, args.metrics_port)
        print(f"metrics: http://{args.metrics_host}:{args.metrics_port}/metrics", file=sys.stderr)
    with source.open("rb") as lines, replacing(output, keeps_unfinished=True) as out:
        total = None if args.disable_tqdm else sum(1 for _ in _records(lines))
        lines.seek(0)
        bar = tqdm(total=total, desc="Requests", disable=args.disable_tqdm, unit="req")
        async for reply in _in_order(server, _records(lines), at_once, lambda: bar.update(1)):
            counts.failed += reply["error"] is not None
            counts.nameless += reply["custom_id"] is None
            counts.total += 1
            out.write(_line(reply))
        bar.close()
    if args.enable_metrics:
        metrics.close()
    return counts


def _line(reply: dict[str, Any]) -> bytes:
    """JSON in UTF-8; a lone surrogate in a custom_id is escaped."""
    try:
        return json.dumps(reply, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(reply).encode() + b"\n"


async def _in_order(
    server: InProcessServer,
    records: Iterable[bytes],
    at_once: int,
    on_answered: Callable[[], object],
) -> Any:
    """Answers up to `at_once` lines at a time; yields the replies in the order of the lines.
    `on_answered` is called for each line as soon as its reply is there, in any order."""
    in_work: collections.deque[asyncio.Task[dict[str, Any]]] = collections.deque()
    try:
        for record in records:
            task = asyncio.create_task(answer_line(server, record))
            task.add_done_callback(lambda _: on_answered())
            in_work.append(task)
            while len(in_work) >= at_once:
                yield await in_work.popleft()
        while in_work:
            yield await in_work.popleft()
    finally:
        for task in in_work:
            task.cancel()


def _records(lines: IO[bytes]) -> Iterator[bytes]:
    while line := lines.readline(_MAX_LINE_BYTES + 1):
        if line.strip():
            yield line
        if len(line) > _MAX_LINE_BYTES and not line.endswith(b"\n"):
            while rest := lines.readline(_MAX_LINE_BYTES):
                if rest.endswith(b"\n"):
                    break


async def answer_line(server: InProcessServer, line: bytes) -> dict[str, Any]:
    """The reply to one line, which may be an error. Never raises because of the line's contents."""
    reply: dict[str, Any] = {
        "id": f"batch_req_{uuid.uuid4().hex}", "custom_id": None, "response": None, "error": None,
    }  # fmt: skip
    try:
        if len(line) > _MAX_LINE_BYTES:
            raise ValueError(f"the line is longer than {_MAX_LINE_BYTES} bytes")
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("a request is a JSON object")
        if isinstance(record.get("custom_id"), str):
            reply["custom_id"] = record["custom_id"]
        path, body = _checked(record)
    except (ValueError, RecursionError) as error:
        return {**reply, "error": {"message": str(error), "code": "invalid_request"}}
    answer = await server.post(path, body)
    reply["response"] = {
        "status_code": answer.status, "request_id": answer.request_id, "body": answer.body,
    }  # fmt: skip
    if answer.status != 200:
        told = answer.body.get("error", answer.body) if isinstance(answer.body, dict) else {}
        return {**reply, "error": told}
    return reply


def _checked(record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body of a request. Raises ValueError for an invalid one."""
    if not isinstance(record.get("custom_id"), str):
        raise ValueError('custom_id is missing: write {"custom_id": "my-1", ...}')
    if record.get("method", "POST") != "POST":
        raise ValueError(f"method {record['method']!r} is not known; use POST")
    path, body = record.get("url"), record.get("body")
    if path not in PATHS:
        raise ValueError(f"url {path!r} is not known; use {' or '.join(PATHS)}")
    if not isinstance(body, dict):
        raise ValueError("body is missing: it is the JSON object of the request to the url")
    if body.get("stream"):
        raise ValueError("a batch is not streamed; leave stream out")
    return str(path), body
