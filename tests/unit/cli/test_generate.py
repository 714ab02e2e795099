"""`quire generate`: a prompt for every row of a file."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.in_process import InProcessServer
from quire.cli.row_work import ENDING, Journal

SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
MANY = ",".join(f"c{number}" for number in range(20_000)) + "\n" + "," * 19_999 + "\n"
CALM = ["--temperature", "0", "--max-tokens", "4", "--disable-tqdm", "--max-num-seqs", "2"]


class Run:
    """Runs the command on rows in a folder."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.target = folder / "out.jsonl"

    def __call__(self, rows: list[Any], *options: str, code: int = 0) -> list[dict[str, Any]]:
        source = self.folder / "in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.file(source, self.target, *options, code=code)

    def file(
        self, source: Path, target: Path, *options: str, code: int = 0
    ) -> list[dict[str, Any]]:
        words = ["generate", str(source), "--out", str(target), "--model", str(self.model)]
        assert main([*words, *CALM, *options]) == code
        if code or target.suffix != ".jsonl":
            return []
        return [json.loads(line) for line in target.read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path, model_dir: Path) -> Run:
    return Run(tmp_path, model_dir)


def test_rows_of_all_formats_get_the_same_replies(run: Run) -> None:
    rows = [{"id": str(n), "text": f"number {n}, {{or}} so"} for n in range(5)]
    found = run(rows, "--prompt", "Say {{this}}: {text}", "--system", "Row {id}")
    assert [row["id"] for row in found] == list("01234")
    assert all(row["reply_error"] is None for row in found)
    assert all(row["reply_finish_reason"] in ("stop", "length") for row in found)
    assert len({row["reply"] for row in found}) > 1
    source = run.folder / "in.csv"
    with source.open("w", newline="") as file:
        lines = csv.DictWriter(file, ["id", "text"])
        lines.writeheader()
        lines.writerows(rows)
    target = run.folder / "out.csv"
    run.file(source, target, "--prompt", "Say {{this}}: {text}", "--system", "Row {id}")
    with target.open(newline="") as file:
        again = list(csv.DictReader(file))
    assert [row["reply"] for row in again] == [row["reply"] for row in found]
    assert list(again[0]) == ["id", "text", "reply", "reply_finish_reason", "reply_error"]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_formulas_are_escaped_for_spreadsheets(run: Run, ending: str) -> None:
    texts = ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "\uff1dx", "-5", "+1.5e3", "a=b", "'=x"]
    source, target = run.folder / "in.csv", run.folder / f"out.{ending}"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["=head", "text"], *([text, "hi"] for text in texts)])
    for options, expected in (
        ([], ["=head", *texts]),
        (["--escape-formulas"], ["'=head", *(f"'{one}" for one in texts[:7]), *texts[7:]]),
    ):
        run.file(source, target, "--prompt", "{text}", *options)
        with target.open(newline="") as file:
            found = list(csv.reader(file, delimiter="," if ending == "csv" else "\t"))
        assert [row[0] for row in found] == expected


def test_an_unnamed_column_is_a_column(run: Run) -> None:
    source = run.folder / "in.csv"
    source.write_text(",b\nhello,2\n")
    [row] = run.file(source, run.target, "--prompt", "{}")
    assert row[""] == "hello"


def test_parquet_keeps_its_types(run: Run) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = pyarrow.schema([("id", pyarrow.int16()), ("text", pyarrow.large_string())])
    source, target = run.folder / "in.parquet", run.folder / "out.parquet"
    parquet.write_table(pyarrow.table([[1, 2], ["a", None]], schema=kinds), source)
    run.file(source, target, "--prompt", "{text}")
    found = parquet.read_table(target)
    assert [found.schema.field(name).type for name in kinds.names] == kinds.types
    assert found["reply_error"].to_pylist() == [None, "the column 'text' is empty"]


def test_a_schema_gives_columns_and_a_row_fails_alone(run: Run) -> None:
    rows = [{"text": "a"}, {"other": 1}, {"text": "b " * 4000}, {"text": ["c", 1]}]
    options = ["--prompt", "{text}", "--schema", json.dumps(SCHEMA), "--reply-column", "found"]
    found = run(rows, *options, "--max-tokens", "60")
    for row in (found[0], found[3]):
        assert row["n"] in (1, 2)
        assert isinstance(row["ok"], bool)
        assert row["found_error"] is None
    assert found[1] == {"other": 1, "n": None, "ok": None,
                        "found_error": "the column 'text' is empty"}  # fmt: skip
    assert "maximum" in found[2]["found_error"]


def test_a_reply_that_is_not_complete_json_is_an_error(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run([{"text": "a"}], "--prompt", "{text}", "--schema", json.dumps(SCHEMA), code=1)
    assert "before its JSON was complete" in capsys.readouterr().err
    assert not list(run.folder.glob("out*"))


def test_conversations_and_plain_texts(run: Run) -> None:
    talk = [{"role": "user", "content": "hello"}]
    found = run([{"m": talk}, {"m": json.dumps(talk)}, {"m": 1}], "--messages", "m")
    assert found[0]["reply"] == found[1]["reply"]
    assert "must be a list" in found[2]["reply_error"]
    (plain,) = run([{"text": "hello"}], "--prompt", "{text}", "--plain")
    (chat,) = run([{"text": "hello"}], "--prompt", "{text}")
    assert plain["reply"] != chat["reply"]


def test_a_stopped_run_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that were finished are not computed again, apart from those that failed."""
    rows: list[dict[str, Any]] = [{"text": f"row {n}"} for n in range(9)] + [{}]
    whole = run(rows, "--prompt", "{text}")
    run.target.unlink()
    asked: list[Any] = []
    stops_after = 7
    post = InProcessServer.post

    async def counted(server: InProcessServer, path: str, body: Any) -> Any:
        asked.append(body["messages"][0]["content"])
        if len(asked) == stops_after:
            os.kill(os.getpid(), signal.SIGINT)
        return await post(server, path, body)

    monkeypatch.setattr(InProcessServer, "post", counted)
    run(rows, "--prompt", "{text}", code=130)
    journal = run.target.with_name(run.target.name + ENDING)
    kept = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert not run.target.exists()
    with journal.open("a") as file:
        file.write('[7, {"cel')  # the line that a loss of power cut
    asked.clear()
    stops_after = 100
    assert run(rows, "--prompt", "{text}") == whole
    good = {f"row {number}" for number, answer in kept if "error" not in answer}
    assert sorted(asked) == sorted({f"row {n}" for n in range(9)} - good)
    assert not journal.exists()
    assert good
    assert f"{len(good)} of 10 rows were finished by an earlier run" in capsys.readouterr().err


def test_what_belongs_to_another_run_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = run.target.with_name(run.target.name + ENDING)
    line = json.dumps({"input file": "other", "prompt": "{text}"})
    journal.write_text(f'{line}\n[0, {{"cells": ["x", "stop"], "tokens": 1}}]\n')
    run([{"text": "a"}], "--prompt", "{text}", code=1)
    told = capsys.readouterr().err
    assert "has 1 rows of a run with another input file" in told
    assert journal.exists()
    journal.write_text("[\n")
    run([{"text": "a"}], "--prompt", "{text}", code=1)
    assert "is damaged; delete it" in capsys.readouterr().err
    journal.unlink()
    for record in ("[" * 100_000, '[{}, {"cells": []}]', "[0, 1]", '["0", {"cells": []}]'):
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "delete", lambda _: None)
            run([{"text": "a"}], "--prompt", "{text}")
        journal.write_text(f"{journal.read_text().splitlines()[0]}\n{record}\n")
        capsys.readouterr()
        run([{"text": "a"}], "--prompt", "{text}", code=1)
        assert "is damaged; delete it" in capsys.readouterr().err
        journal.unlink()
    with Journal(run.target, {}):
        run([{"text": "a"}], "--prompt", "{text}", code=1)
    assert "is in use by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("in.csv", "text\na\n", ["--prompt", "{txet}"], "no column 'txet'; did you mean text?"),
        ("in.csv", "text\na\n", ["--prompt", "{text"], "position 1 has no partner"),
        ("in.csv", "text\na\n", ["--prompt", "{text} {}"], "write the braces {} as {{}}"),
        ("in.csv", MANY, ["--prompt", "{x}"], "'c19' and 19,980 more"),
        ("in.csv", "a\x1b[2J,a\x1b[2J\n", ["--prompt", "{a}"], r"two are 'a\x1b[2J'"),
        ("in.csv", "a\x1b[2J\n1\n", ["--prompt", "{b}"], r"it has 'a\x1b[2J'"),
        ("in.txt", "a\n", ["--prompt", "{text}", "--escape-formulas"], "ends in .csv or .tsv"),
        ("in.csv", "text\na\n", [], "give one of --prompt"),
        ("in.csv", "text\na,b\n", ["--prompt", "{text}"], "line 2: must have as many fields"),
        ("in.csv", "a,a\n1,2\n", ["--prompt", "{a}"], "two are 'a'"),
        ("in.csv", "reply\na\n", ["--prompt", "{reply}"], "already has a column 'reply'"),
        ("in.csv", "text\n", ["--prompt", "{text}"], "has no rows"),
        ("in.csv", 'text\n"a\n', ["--prompt", "{text}"], "must be CSV"),
        ("in.csv", b"text\n\xff\n", ["--prompt", "{text}"], "must be UTF-8"),
        ("in.jsonl", "[1]\n", ["--prompt", "{text}"], "line 1: must be a JSON object"),
        ("in.jsonl", "[" * 100_000, ["--prompt", "{text}"], "line 1: must be JSON"),
        ("in.txt", "a\n", ["--prompt", "{text}", "--schema", "[1]"], "--schema [1] cannot be read"),
        ("in.txt", "a\n", ["--prompt", "{text}", "--request", '{"n": 2}'], "must not have n"),
        ("in.txt", "a\n", ["--messages", "m"], "no column 'm'"),
        ("in.txt", "a\n", ["--prompt", "{text}", "--temperature", "9"], "row 1: temperature"),
    ],
)
def test_what_is_refused(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | bytes,
    options: list[str],
    message: str,
) -> None:
    source = run.folder / name
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    run.file(source, run.target, *options, code=1)
    assert message in capsys.readouterr().err
    assert not list(run.folder.glob("out*"))


def test_a_run_whose_rows_all_fail_ends_early(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    post = InProcessServer.post

    async def counted(server: InProcessServer, path: str, body: Any) -> Any:
        asked.append(path)
        return await post(server, path, body)

    monkeypatch.setattr(InProcessServer, "post", counted)
    rows = [{"text": "a"}] * 400
    run(rows, "--prompt", "{text}", "--request", '{"top_p": 7}', code=1)
    assert "in.jsonl, row 1: top_p" in capsys.readouterr().err
    assert len(asked) < 40
