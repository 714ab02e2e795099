"""Give every text of a file a vector: CSV, JSON lines, Parquet or plain lines in, vectors out.

The texts are read and computed in portions. Vectors for .jsonl are written portion by portion;
those for .npy and .parquet stay in memory until the end. If the command fails, there is no output.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError, PromptError, quoted
from quire.files import replacing

if TYPE_CHECKING:
    from quire.llm import LLM

_PORTION = 2048
"""Texts that are computed at a time."""
_DEFAULTS = {"disable_log_stats": True}
_OUTPUTS = (".npy", ".jsonl", ".parquet")

_PLACE = re.compile(r"prompts\[(\d+)\]: (.*)", re.DOTALL)
"""How an error of one of several texts begins."""

Record = dict[str, Any]


def configure(parser: Parser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "file",
        metavar="FILE",
        nargs="?",
        help="Texts: .csv, .jsonl, .parquet, or a text in each line.",
    )
    add("--out", metavar="FILE", help="Vectors: .npy, .jsonl or .parquet.")
    add("--column", default="text", help="Column or key of the texts; `text` by default.")
    add("--prompt-name", help="Which of the model's prompts is put before each text.")
    add("--dimensions", type=int, help="Length of the vectors, for models with several.")
    add("--truncate", action="store_true", help="Cut the end of texts that are too long.")
    add("--disable-tqdm", action="store_true", help="Show no progress bar.")
    add_engine_options(parser, defaults=_DEFAULTS)
    add_unsupported(parser, {})


def execute(args: argparse.Namespace) -> int:
    """Write the vectors."""
    from quire.llm import LLM

    if not args.file or not args.out:
        raise ConfigError("give both files: quire embed FILE.csv --out VECTORS.npy --model MODEL")
    source, target = Path(args.file), Path(args.out)
    if not source.is_file():
        raise ConfigError(f"{source}: the file does not exist")
    if target.suffix not in _OUTPUTS:
        raise ConfigError(f"--out must end in {', '.join(_OUTPUTS)}, got {quoted(str(target))}")
    llm = LLM.from_engine_args(engine_args(args, defaults=_DEFAULTS))
    with closing(llm):
        count = _embed(llm, source, target, args)
    print(f"{count} vectors: {target}")
    return 0


def _embed(llm: LLM, source: Path, target: Path, args: argparse.Namespace) -> int:
    from tqdm import tqdm  # type: ignore[import-untyped]

    count, parts = 0, []
    records = _records(source, args.column)
    with (
        replacing(target) as out,
        tqdm(desc="Texts", disable=args.disable_tqdm, unit="text") as bar,
    ):
        while portion := list(islice(records, _PORTION)):
            texts = [_text(one, args.column) for one in portion]
            with _numbered(source, count):
                vectors = _vectors(llm, texts, args)
            if target.suffix == ".jsonl":
                _write_lines(out, portion, vectors)
            else:
                parts.append((portion, vectors))
            count += len(portion)
            bar.update(len(portion))
        if not count:
            raise ConfigError(f"{source} has no texts")
        if target.suffix == ".npy":
            np.save(out, np.concatenate([vectors for _, vectors in parts]))
        elif target.suffix == ".parquet":
            _write_table(out, parts)
    return count


@contextmanager
def _numbered(source: Path, first: int) -> Iterator[None]:
    """Names the text of an error by its place in the file; `first` texts came before."""
    try:
        yield
    except PromptError as error:
        match = _PLACE.match(str(error))
        number, words = (int(match[1]), match[2]) if match else (0, str(error))
        advice = "; --truncate cuts such texts" if error.parameter == "input_tokens" else ""
        raise ConfigError(f"{source}, text {first + number + 1}: {words}{advice}") from None


def _vectors(llm: LLM, texts: Sequence[str], args: argparse.Namespace) -> NDArray[np.float32]:
    from quire.protocol.pooling_params import PoolingParams

    params = PoolingParams(dimensions=args.dimensions, prompt_name=args.prompt_name, task="embed")
    options = {"truncate_prompt_tokens": -1} if args.truncate else None
    found = llm.encode(
        list(texts), params, pooling_task="embed", use_tqdm=False, tokenization_kwargs=options
    )
    return np.stack([one.outputs.data for one in found])


def _records(source: Path, column: str) -> Iterator[Record]:
    """The rows of the file, each with its text under `column`."""
    if source.suffix == ".parquet":
        for batch in _parquet().ParquetFile(source).iter_batches():
            yield from batch.to_pylist()
        return
    with source.open(encoding="utf-8-sig", newline="" if source.suffix == ".csv" else None) as file:
        if source.suffix == ".csv":
            yield from csv.DictReader(file)
        elif source.suffix in (".jsonl", ".ndjson"):
            yield from (_row(source, n, line) for n, line in enumerate(file, 1) if line.strip())
        else:
            yield from ({column: line.rstrip("\n")} for line in file)


def _row(source: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{source}, line {number}: must be JSON: {error}") from None


def _text(record: Any, column: str) -> str:
    text = record.get(column) if isinstance(record, dict) else None
    if not isinstance(text, str):
        known = ", ".join(record) if isinstance(record, dict) else ""
        raise ConfigError(
            f"--column {quoted(column)} must name the texts; a row has {known or quoted(record)}"
        )
    return text


def _write_lines(out: IO[bytes], records: Sequence[Record], vectors: NDArray[np.float32]) -> None:
    for record, vector in zip(records, vectors, strict=True):
        line = json.dumps({**record, "embedding": vector.tolist()}, ensure_ascii=False)
        out.write(line.encode(errors="surrogatepass") + b"\n")


def _write_table(
    out: IO[bytes], parts: Sequence[tuple[Sequence[Record], NDArray[np.float32]]]
) -> None:
    import pyarrow  # type: ignore[import-not-found]

    rows = [
        {**record, "embedding": vector}
        for records, vectors in parts
        for record, vector in zip(records, vectors, strict=True)
    ]
    _parquet().write_table(pyarrow.Table.from_pylist(rows), out)


def _parquet() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-not-found]
    except ImportError:
        raise ConfigError("Parquet files need pyarrow: pip install pyarrow") from None
    return pyarrow.parquet
