"""Answer a file of OpenAI batch requests: one JSON request per input line, one reply per output
line.

Many lines run concurrently, as on a server. Replies are written in input order. An invalid line
gets an error as its reply and does not affect other lines. Files may be http URLs.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.declaration import common_options
from quire.config.engine_args import AsyncEngineArgs
from quire.config.vllm_names import check_server_options, unsupported
from quire.config.vllm_variables import server_defaults
from quire.errors import ConfigError, quoted
from quire.files import replacing
from quire.log import get_logger
from quire.log.writer import say
from quire.server.args import ServerArgs
from quire.units import MiB

if TYPE_CHECKING:
    from quire.cli.in_process import InProcessServer


logger = get_logger(__name__)

_TIMEOUT_S = 1000.0
_TRIES = 5
RETRY_S = 5.0
"""Seconds between two attempts to upload a file."""


def is_url(place: str) -> bool:
    """Whether a file is given by an http or https URL."""
    return place.startswith(("http://", "https://"))


@contextmanager
def local_input(place: str) -> Iterator[Path]:
    """The input as a local file. Raises ConfigError if it does not exist or cannot be
    downloaded."""
    if not is_url(place):
        path = Path(place)
        if not path.is_file():
            raise ConfigError(f"--input-file {place}: the file does not exist")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="quire-batch-") as directory:
        path = Path(directory) / "input.jsonl"
        try:
            with urllib.request.urlopen(place, timeout=_TIMEOUT_S) as reply, path.open("wb") as out:
                shutil.copyfileobj(reply, out)
        except (OSError, HTTPException, ValueError) as error:
            raise ConfigError(f"--input-file {place} cannot be fetched: {error}") from None
        yield path


@contextmanager
def local_output(place: str, directory: str | None) -> Iterator[Path]:
    """The local file to write; if `place` is a URL, it is uploaded after the block.

    `directory`: folder of the temporary file. Raises ConfigError if the upload fails; the error
    names the file, which is kept.
    """
    if not is_url(place):
        yield Path(place)
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="quire-batch-", dir=directory))
    except OSError as error:
        raise ConfigError(f"--output-tmp-dir {quoted(directory)}: {error.strerror}") from None
    path = folder / "output.jsonl"
    yield path
    _send(path, place)
    shutil.rmtree(folder, ignore_errors=True)


def _send(path: Path, url: str) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            with path.open("rb") as file:
                headers = {
                    "Content-Length": str(path.stat().st_size),
                    "Content-Type": "application/jsonl",
                }
                request = urllib.request.Request(url, data=file, headers=headers, method="PUT")
                urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
            return
        except (OSError, HTTPException, ValueError) as error:
            if attempt == _TRIES:
                raise ConfigError(
                    f"--output-file {url}: the replies cannot be sent: {error}; they are in {path}"
                ) from None
            logger.warning("attempt %d to send the replies failed: %s", attempt, error)
            time.sleep(RETRY_S)


_HEAD_S = 10.0
"""Seconds within which a request must arrive."""


async def serve_metrics(text: Callable[[], bytes], host: str, port: int) -> asyncio.Server:
    """Serve the current metrics for every GET request. Raises ConfigError if the address is in use.

    Runs on the event loop, the only thread that changes what `text` reads.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            is_get = head.startswith(b"GET ")
            body = text() if is_get else b""
            status = b"200 OK" if is_get else b"405 Method Not Allowed"
            writer.write(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
            )
            await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(answer, host, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"metrics cannot be served at {host}:{port}: {error}; give another --port"
        ) from None


PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/score", "/score",
    "/v1/rerank", "/v2/rerank", "/rerank", "/v1/audio/transcriptions", "/v1/audio/translations",
)  # fmt: skip
_MAX_LINE_BYTES = 16 * MiB
_DEFAULTS = {"max_num_queued_reqs": 1_000_000, "disable_log_stats": True}
_QUIET = {"ui": False, "disable_fastapi_docs": True, "disable_access_log": True}
_OF_THE_SERVER = (
    "response_role", "chat_template_content_format", "default_chat_template_kwargs",
    "reasoning_effort_map", "exclude_tools_when_tool_choice_none", "return_tokens_as_token_ids",
    "enable_per_request_metrics", "fingerprint_mode", "fingerprint_value", "enable_log_outputs",
    "max_log_len",
)  # fmt: skip
"""Server options that affect replies and the log."""


@dataclass(slots=True)
class _Counts:
    """Counters of processed lines."""

    total: int = 0
    failed: int = 0
    nameless: int = 0
    """Lines without a custom_id, whose replies cannot be matched to a request."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("-i", "--input-file", metavar="FILE", help="Requests, one JSON per line; a path or URL.")
    add("-o", "--output-file", metavar="FILE", help="File for the replies; a path or URL (PUT).")
    add("--output-tmp-dir", metavar="DIR", help="Directory for replies before their upload.")
    add("--disable-tqdm", action="store_true", help="Show no progress bar.")
    add("--enable-metrics", action="store_true", help="Serve Prometheus metrics during the run.")
    add("--host", "--url", dest="metrics_host", default="127.0.0.1", help="Host of the metrics.")
    add("--port", dest="metrics_port", type=int, default=8000, help="Port of the metrics.")
    fields = {field.name for field in dataclasses.fields(ServerArgs)}
    add_options(parser, ServerArgs, title="Frontend", skip=fields - set(_OF_THE_SERVER))
    add_engine_options(parser, record=AsyncEngineArgs, defaults=_DEFAULTS)
    add_unsupported(parser, unsupported("server_options"))
    parser.shorten({"Frontend"}, common_options(AsyncEngineArgs))


def execute(args: argparse.Namespace) -> int:
    """Answer every line. Returns 1 if a line has no custom_id to match its reply to."""
    from quire.cli.in_process import InProcessServer

    if not args.input_file or not args.output_file:
        raise ConfigError("give both files: quire run-batch -i IN.jsonl -o OUT.jsonl")
    if _is_same_file(args.input_file, args.output_file):
        raise ConfigError(
            f"--output-file must be another file than --input-file, which the replies would "
            f"replace, got {quoted(args.output_file)} for both; give another name, such as "
            "replies.jsonl"
        )
    check_server_options(vars(args))
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
    say(f"{answered} of {counts.total} requests answered; replies: {args.output_file}")
    if counts.failed:
        say(f"{counts.failed} failed; their replies contain the errors", file=sys.stderr)
    if counts.nameless:
        say(
            f"{counts.nameless} of these have no custom_id: their errors have custom_id null",
            file=sys.stderr,
        )
    return 1 if counts.nameless else 0


def _is_same_file(first: str, second: str) -> bool:
    if is_url(first) or is_url(second):
        return first == second
    return Path(os.path.realpath(first)) == Path(os.path.realpath(second))


async def _answer_file(
    server: InProcessServer, source: Path, output: Path, args: argparse.Namespace
) -> _Counts:
    """Write the replies. The file appears when it is complete."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    counts = _Counts()
    at_once = 2 * server.engine.config.scheduler.max_num_seqs
    if args.enable_metrics:
        metrics = await serve_metrics(server.metrics, args.metrics_host, args.metrics_port)
        say(f"metrics: http://{args.metrics_host}:{args.metrics_port}/metrics", file=sys.stderr)
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
    """Encode a reply as JSON in UTF-8; lone surrogates in a custom_id are escaped."""
    try:
        return json.dumps(reply, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(reply).encode() + b"\n"


async def _in_order(
    server: InProcessServer,
    records: Iterable[tuple[int, bytes]],
    at_once: int,
    on_answered: Callable[[], object],
) -> Any:
    """Answer up to `at_once` lines concurrently; yields the replies in input order. `on_answered`
    is called when a line is answered, in any order."""
    in_work: collections.deque[asyncio.Task[dict[str, Any]]] = collections.deque()
    try:
        for number, line in records:
            task = asyncio.create_task(_answered(server, number, line, on_answered))
            in_work.append(task)
            while len(in_work) >= at_once:
                yield await in_work.popleft()
        while in_work:
            yield await in_work.popleft()
    finally:
        for task in in_work:
            task.cancel()


async def _answered(
    server: InProcessServer, number: int, line: bytes, on_answered: Callable[[], object]
) -> dict[str, Any]:
    reply = await _answer_line(server, number, line)
    on_answered()
    return reply


def _records(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number from 1."""
    number = 0
    while line := lines.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if line.strip():
            yield number, line
        if len(line) > _MAX_LINE_BYTES and not line.endswith(b"\n"):
            while rest := lines.readline(_MAX_LINE_BYTES):
                if rest.endswith(b"\n"):
                    break


async def _answer_line(server: InProcessServer, number: int, line: bytes) -> dict[str, Any]:
    """The reply to one line, which may be an error. Invalid contents never raise."""
    reply: dict[str, Any] = {
        "id": f"batch_req_{uuid.uuid4().hex}", "custom_id": None, "response": None, "error": None,
    }  # fmt: skip
    try:
        record = _parsed(line)
        if isinstance(record.get("custom_id"), str):
            reply["custom_id"] = record["custom_id"]
        path, body = _checked(record)
    except ValueError as error:
        message = f"line {number}: {error}"
        return {**reply, "error": {"message": message, "code": "invalid_request"}}
    answer = await server.post(path, body)
    reply["response"] = {
        "status_code": answer.status, "request_id": answer.request_id, "body": answer.body,
    }  # fmt: skip
    if answer.status != 200:
        found = answer.body.get("error", answer.body) if isinstance(answer.body, dict) else {}
        return {**reply, "error": found}
    return reply


def _parsed(line: bytes) -> dict[str, Any]:
    """The request. Raises ValueError."""
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"the request must have at most {_MAX_LINE_BYTES} bytes")
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(
            f"the request must be UTF-8, but has the byte {byte:#04x} at position {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"the request must be a JSON object in one line, but at character {error.pos + 1}: "
            f"{error.msg}"
        ) from None
    except RecursionError:
        raise ValueError("the request is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("the request must be a JSON object")
    return record


def _checked(record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if not isinstance(record.get("custom_id"), str):
        raise ValueError('custom_id must be a string: write {"custom_id": "my-1", ...}')
    if record.get("method", "POST") != "POST":
        raise ValueError(f"method must be POST, not {record['method']!r}")
    path, body = record.get("url"), record.get("body")
    if path not in PATHS:
        raise ValueError(f"url must be {' or '.join(PATHS)}, not {path!r}")
    if not isinstance(body, dict):
        raise ValueError("body must be a JSON object: the request to the url")
    if body.get("stream"):
        raise ValueError("stream must be false or absent: a batch is not streamed")
    return str(path), body
