"""Give every text of a file a vector: CSV, JSON lines, Parquet or plain lines in, vectors out.

Many texts are computed at once. Finished ones are kept, so the same command goes on after it was
stopped or killed. A text that fails has its error in a column, except in a .npy file, whose rows
are vectors alone: there the first such text ends the command.
"""

from __future__ import annotations

import argparse
import base64
from typing import TYPE_CHECKING

import numpy as np

from quire.cli.rows.options import add_row_options, facts_of, open_server
from quire.cli.rows.reading import Row, RowFile
from quire.cli.rows.work import RowError, RowRun
from quire.cli.rows.writing import check_target
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError, EngineDeadError, QuireError, quoted

if TYPE_CHECKING:
    from quire.cli.in_process import InProcessServer
    from quire.cli.rows.journal import Answer


_OUTPUTS = (".npy", ".jsonl", ".parquet")


def configure(parser: Parser) -> None:
    """Declare the options."""
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


def execute(args: argparse.Namespace) -> int:
    """Write the vectors."""
    if not args.file or not args.out:
        raise ConfigError("give both files: quire embed FILE.csv --out VECTORS.npy --model MODEL")
    target = check_target(args.out, _OUTPUTS)
    source = RowFile.open(args.file, args.column)
    if args.column not in source.columns:
        raise ConfigError(
            f"--column {quoted(args.column)} must name the texts; the file has the columns "
            f"{', '.join(source.columns)}"
        )
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
        """What the vectors depend on, as JSON values by name."""
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
