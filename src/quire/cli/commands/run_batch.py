"""Answer a file of OpenAI batch requests: one JSON request per line in, one reply per line out.

Many lines run at the same time, as on a server. Replies are written in the order of the lines. An
invalid line gets an error as its reply and does not affect the others.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from quire.cli.in_process import InProcessServer
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError
from quire.files import replacing
from quire.units import MiB

PATHS = ("/v1/chat/completions", "/v1/completions")
_MAX_LINE_BYTES = 16 * MiB
_DEFAULTS = {"max_num_queued_reqs": 1_000_000, "disable_log_stats": True}


def configure(parser: Parser) -> None:
    """Declares the options."""
    parser.add_argument("-i", "--input-file", metavar="FILE", help="Requests, one JSON per line.")
    parser.add_argument("-o", "--output-file", metavar="FILE", help="Where the replies go.")
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    add_engine_options(parser, defaults=_DEFAULTS)


def execute(args: argparse.Namespace) -> int:
    """Answers every line. Returns 0 even if some replies are errors."""
    if not args.input_file or not args.output_file:
        raise ConfigError("give both files: quire run-batch -i IN.jsonl -o OUT.jsonl")
    source = Path(args.input_file)
    if not source.is_file():
        raise ConfigError(f"--input-file {source}: there is no such file")
    server = InProcessServer(engine_args(args, defaults=_DEFAULTS))
    try:
        failed, total = asyncio.run(_answer_file(server, source, args))
    finally:
        server.close()
    print(f"{total - failed} of {total} requests answered; replies: {args.output_file}")
    return 0


async def _answer_file(
    server: InProcessServer, source: Path, args: argparse.Namespace
) -> tuple[int, int]:
    """Writes the replies. Returns (number of errors, number of lines). The file appears when it is
    complete."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    failed = total = 0
    at_once = 2 * server.engine.config.scheduler.max_num_seqs
    target = replacing(Path(args.output_file), keeps_unfinished=True)
    with source.open("rb") as lines, target as out:
        bar = tqdm(disable=args.disable_tqdm, unit="req")
        async for reply in _in_order(server, _records(lines), at_once):
            failed += reply["error"] is not None
            total += 1
            out.write(_line(reply))
            bar.update(1)
        bar.close()
    return failed, total


def _line(reply: dict[str, Any]) -> bytes:
    """JSON in UTF-8; a lone surrogate in a custom_id is escaped."""
    try:
        return json.dumps(reply, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(reply).encode() + b"\n"


async def _in_order(server: InProcessServer, records: Iterable[bytes], at_once: int) -> Any:
    """Answers up to `at_once` lines at a time; yields the replies in the order of the lines."""
    in_work: collections.deque[asyncio.Task[dict[str, Any]]] = collections.deque()
    try:
        for record in records:
            in_work.append(asyncio.create_task(answer_line(server, record)))
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
