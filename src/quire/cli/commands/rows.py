"""`quire generate` and `quire embed`: something is computed for every row of a file."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.cli.row_files import DELIMITERS, TABLES, Row, RowFile, check_target
from quire.cli.row_prompts import Prompts, check_column, read_text
from quire.cli.row_work import RowError, RowRun
from quire.cli.terminal import quiet_log
from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count, parse_json
from quire.config.engine_args import AsyncEngineArgs
from quire.config.vllm_variables import server_defaults
from quire.errors import ConfigError, EngineDeadError, QuireError, quoted

if TYPE_CHECKING:
    from quire.cli.in_process import InProcessServer
    from quire.cli.row_work import Answer


_DEFAULTS = {"max_num_queued_reqs": 1_000_000, "disable_log_stats": True}
_QUIET = {"ui": False, "disable_fastapi_docs": True, "disable_access_log": True}
_OF_THE_MODEL = (
    "model", "revision", "tokenizer", "chat_template", "dtype", "quantization", "load_format",
    "max_model_len", "seed", "hf_overrides",
)  # fmt: skip
"""Options on which the answers depend."""


def add_row_options(
    parser: Parser, *, has_positional: bool = True, skip: Collection[str] = ()
) -> None:
    """Declare the options of the run and of the engine. `skip`: options of the engine that the
    command does not have."""
    parser.add_argument("--disable-tqdm", action="store_true", help="Show no progress bar.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_engine_options(
        parser, record=AsyncEngineArgs, has_positional=has_positional, skip=skip, defaults=_DEFAULTS
    )
    add_unsupported(parser, {})


def facts_of(args: argparse.Namespace) -> dict[str, Any]:
    """The given options on which the answers depend."""
    named = {} if args.model_tag is None else {"model": args.model_tag}
    given = {name: getattr(args, name) for name in _OF_THE_MODEL if hasattr(args, name)}
    return {name: str(value) for name, value in {**given, **named}.items()}


@contextmanager
def open_server(args: argparse.Namespace) -> Iterator[InProcessServer]:
    """Load the model. Raises ConfigError, ModelError or BackendError."""
    from quire.cli.in_process import InProcessServer
    from quire.server.args import ServerArgs

    if not args.verbose:
        quiet_log()
    wanted = engine_args(args, record=AsyncEngineArgs, defaults=_DEFAULTS)
    settings: dict[str, Any] = {**_QUIET, **server_defaults()}
    server = InProcessServer(wanted, ServerArgs(**settings))
    try:
        yield server
    finally:
        server.close()


_SAMPLING = ("temperature", "top_p", "max_tokens", "stop", "seed")
_OWN_FIELDS = ("messages", "prompt", "model", "stream", "n", "response_format")


class ReplyJob:
    """Owned by one event loop."""

    server: InProcessServer
    """Must be set before the first row."""

    def __init__(
        self, prompts: Prompts, body: dict[str, Any], schema: Any, reply_column: str
    ) -> None:
        """`body`: the fields that all requests share; `schema`: of the replies, or None."""
        self.prompts = prompts
        self._schema = schema
        self._body = body
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self._properties = tuple(properties) if isinstance(properties, dict) else ()
        self.columns: tuple[str, ...] = self._properties or (reply_column,)
        if schema is None:
            self.columns = (reply_column, f"{reply_column}_finish_reason")
        self.error_column: str | None = f"{reply_column}_error"

    def facts(self) -> dict[str, Any]:
        """Settings that the replies depend on, as JSON values by name."""
        return {
            **self.prompts.facts(),
            "schema": self._schema,
            "sampling": self._body,
            "columns": self.columns,
        }

    async def answer(self, number: int, row: Row) -> Answer:
        """The reply. Raises RowError, or EngineDeadError if the engine has stopped."""
        del number
        body = {**self._body, **self.prompts.fields(row)}
        if self._schema is not None:
            form = {"name": "row", "schema": self._schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        path = "/v1/chat/completions"
        if self.prompts.is_plain:
            path = "/v1/completions"
            body.setdefault("max_tokens", self.server.engine.model_config.max_model_len)
        reply = await self.server.post(path, body)
        if reply.status != 200:
            if self.server.engine.errored:
                raise EngineDeadError(_message(reply.body))
            raise RowError(_message(reply.body))
        choice = reply.body["choices"][0]
        text = choice["text"] if self.prompts.is_plain else choice["message"]["content"]
        return {
            **self._values(text or "", choice["finish_reason"]),
            "tokens": reply.body["usage"]["completion_tokens"],
        }

    def cells(self, answer: Answer) -> Row:
        """The reply as columns."""
        return dict(zip(self.columns, answer["cells"], strict=True))

    def _values(self, text: str, finish_reason: str) -> Answer:
        if self._schema is None:
            return {"cells": [text, finish_reason]}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise RowError(
                f"the reply ended ({finish_reason}) before its JSON was complete: {quoted(text)}"
            ) from None
        if self._properties:
            return {"cells": [value.get(name) for name in self._properties]}
        return {"cells": [value]}


def request_body(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that all requests share. Raises ConfigError."""
    given = {name: getattr(args, name, None) for name in _SAMPLING}
    body = {name: value for name, value in given.items() if value is not None}
    further = {} if args.request is None else args.request
    if not isinstance(further, dict):
        raise ConfigError(f"--request must be a JSON object, got {quoted(further)}")
    if wrong := next((name for name in (*_OWN_FIELDS, *body) if name in further), None):
        raise ConfigError(f"--request must not have {wrong}: an option of this command sets it")
    return {**body, **further}


def read_schema(given: str | None) -> Any:
    """The schema, from JSON or a file; None without one. Raises ConfigError."""
    if given is None:
        return None
    text = given if given.lstrip().startswith("{") else read_text("--schema", given)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--schema must be JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigError(f"--schema must be a JSON object, got {quoted(schema)}")
    return schema


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)


def generate_options(parser: Parser) -> None:
    parser.add_argument(
        "file", metavar="INPUT", nargs="?", help="Rows: .csv, .tsv, .jsonl, .parquet, or lines."
    )
    add = parser.add_argument_group("prompt").add_argument
    add("--prompt", metavar="TEMPLATE", help="The prompt; {name} stands for a column.")
    add("--prompt-file", metavar="FILE", help="A file with the prompt.")
    add("--system", metavar="TEMPLATE", help="A system message before the prompt.")
    add("--messages", metavar="COLUMN", help="A column with conversations, instead of --prompt.")
    add("--plain", action="store_true", help="Continue the prompt, without the chat template.")
    add = parser.add_argument_group("reply").add_argument
    add("--out", metavar="OUTPUT", help=f"File for all rows: {', '.join(TABLES)}.")
    add(
        "--escape-formulas",
        action="store_true",
        help="In .csv and .tsv, put ' before texts that spreadsheets take for formulas.",
    )
    add("--reply-column", metavar="NAME", default="reply", help="Column of replies; `reply`.")
    add(
        "--schema",
        metavar="JSON",
        help="JSON schema of the replies, or a file with it. Each property becomes a column.",
    )
    add("--temperature", type=float, help="0: always take the likeliest token.")
    add("--top-p", type=float, help="Keep the likeliest tokens up to this share.")
    add("--max-tokens", type=parse_count, help="Maximum tokens of a reply.")
    add("--stop", nargs="+", help="Texts that end a reply.")
    add(
        "--request",
        type=parse_json,
        metavar="JSON",
        help="Further fields of each request, by their names in the HTTP API.",
    )
    add_row_options(parser)


def generate(args: argparse.Namespace) -> int:
    """Answer a prompt for every row of a file: CSV, JSON lines or Parquet in, rows with replies
    out.

    Many rows are computed at once. A row that fails gets its error in a column and does not affect
    others. Finished rows are kept, so the same command goes on after it was stopped or killed.
    """
    if not args.file or not args.out:
        raise ConfigError("give both files: quire generate IN.csv --prompt '{text}' --out OUT.csv")
    target = check_target(args.out, TABLES)
    if args.escape_formulas and target.suffix not in DELIMITERS:
        raise ConfigError(
            f"--escape-formulas needs an --out that ends in {' or '.join(DELIMITERS)}, got "
            f"{quoted(args.out)}"
        )
    job = ReplyJob(
        Prompts.of(args), request_body(args), read_schema(args.schema), args.reply_column
    )
    source = RowFile.open(args.file)
    job.prompts.check(source.columns)
    facts = {**job.facts(), **facts_of(args)}
    run = RowRun(source, target, job, facts, escapes_formulas=args.escape_formulas)
    run.check_columns()
    with open_server(args) as server:
        job.server = server
        run.run(2 * server.engine.config.scheduler.max_num_seqs, shows_bar=not args.disable_tqdm)
    return 0


_OUTPUTS = (".npy", ".jsonl", ".parquet")


def embed_options(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "file",
        metavar="FILE",
        nargs="?",
        help="Texts: .csv, .tsv, .jsonl, .parquet, or a text in each line.",
    )
    add("--out", metavar="FILE", help="Vectors: .npy, .jsonl or .parquet.")
    add("--column", default="text", help="Column or key of the texts; `text` by default.")
    add("--prompt-name", help="Which of the model's prompts is put before each text.")
    add("--dimensions", type=int, help="Length of the vectors, for models with several.")
    add("--truncate", action="store_true", help="Cut the end of texts that are too long.")
    add_row_options(parser)


def embed(args: argparse.Namespace) -> int:
    """Give every text of a file a vector: CSV, JSON lines, Parquet or plain lines in, vectors out.

    Many texts are computed at once. Finished ones are kept, so the same command goes on after it
    was stopped or killed. A text that fails has its error in a column, except in a .npy file, whose
    rows are vectors alone: there the first such text ends the command.
    """
    if not args.file or not args.out:
        raise ConfigError("give both files: quire embed FILE.csv --out VECTORS.npy --model MODEL")
    target = check_target(args.out, _OUTPUTS)
    source = RowFile.open(args.file, args.column)
    check_column("--column", args.column, source.columns)
    job = _VectorJob(args, "embedding_error" if target.suffix != ".npy" else None)
    run = RowRun(source, target, job, {**job.facts(), **facts_of(args)})
    if target.suffix != ".npy":
        run.check_columns()
    with open_server(args) as server:
        job.server = server
        run.run(2 * server.engine.config.scheduler.max_num_seqs, shows_bar=not args.disable_tqdm)
    return 0


class _VectorJob:
    """The vector of a text. Owned by one event loop."""

    server: InProcessServer
    """Must be set before the first row."""
    columns: tuple[str, ...] = ("embedding",)

    def __init__(self, args: argparse.Namespace, error_column: str | None) -> None:
        self.error_column = error_column
        self._column: str = args.column
        self._dimensions, self._prompt_name = args.dimensions, args.prompt_name
        self._is_truncated: bool = args.truncate

    def facts(self) -> dict[str, object]:
        """Settings that the vectors depend on, as JSON values by name."""
        return {
            "column": self._column,
            "number of dimensions": self._dimensions,
            "prompt name": self._prompt_name,
            "use of --truncate": self._is_truncated,
        }

    async def answer(self, number: int, row: Row) -> Answer:
        """The vector as bytes of float32, in base64. Raises RowError."""
        from quire.protocol.pooling_params import PoolingParams

        text = row.get(self._column)
        if not isinstance(text, str):
            raise RowError(f"the column {quoted(self._column)} must be a text, got {quoted(text)}")
        params = PoolingParams(
            dimensions=self._dimensions, prompt_name=self._prompt_name, task="embed"
        )
        options = {"truncate_prompt_tokens": -1} if self._is_truncated else None
        outputs = self.server.engine.encode(
            text, params, f"row-{number}", tokenization_kwargs=options
        )
        try:
            found = [output async for output in outputs]
        except EngineDeadError:
            raise
        except QuireError as error:
            is_long = getattr(error, "parameter", None) == "input_tokens"
            raise RowError(f"{error}{'; --truncate cuts such texts' * is_long}") from None
        vector = np.asarray(found[-1].outputs.data, dtype=np.float32)
        return {"vector": base64.b64encode(vector.tobytes()).decode()}

    def cells(self, answer: Answer) -> Row:
        """The vector."""
        return {"embedding": np.frombuffer(base64.b64decode(answer["vector"]), dtype=np.float32)}
