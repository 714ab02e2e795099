"""Answer a prompt for every row of a file: CSV, JSON lines or Parquet in, rows with replies out.

Many rows are computed at once. A row that fails gets its error in a column and does not affect
others. Finished rows are kept, so the same command goes on after it was stopped or killed.
"""

from __future__ import annotations

import argparse

from quire.cli.rows.options import add_row_options, facts_of, open_server
from quire.cli.rows.prompts import Prompts
from quire.cli.rows.reading import RowFile
from quire.cli.rows.replies import ReplyJob, read_schema, request_body
from quire.cli.rows.work import RowRun
from quire.cli.rows.writing import TABLES, check_target
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count, parse_json
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declare the options."""
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


def execute(args: argparse.Namespace) -> int:
    """Write the replies."""
    if not args.file or not args.out:
        raise ConfigError("give both files: quire generate IN.csv --prompt '{text}' --out OUT.csv")
    target = check_target(args.out, TABLES)
    job = ReplyJob(
        Prompts.of(args), request_body(args), read_schema(args.schema), args.reply_column
    )
    source = RowFile.open(args.file)
    job.prompts.check(source.columns)
    run = RowRun(source, target, job, {**job.facts(), **facts_of(args)})
    run.check_columns()
    with open_server(args) as server:
        job.server = server
        run.run(2 * server.engine.config.scheduler.max_num_seqs, shows_bar=not args.disable_tqdm)
    return 0
