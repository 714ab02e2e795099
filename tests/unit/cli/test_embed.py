"""`quire embed`, and lines of `quire run-batch` for vectors, on a tiny encoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_encoder import write_encoder

from quire.cli.app import main
from quire.cli.row_files import RowFile
from quire.errors import ConfigError

TEXTS = ["the sky is blue", "red", "sky " * 60]


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    directory = tmp_path / "model"
    directory.mkdir()
    write_encoder(directory)
    return ["--model", str(directory), "--load-format", "dummy", "--backend", "reference"]


def write_texts(path: Path) -> Path:
    rows = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        path.write_text("id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows))
    else:
        path.write_text("\n".join(TEXTS) + "\n")
    return path


def test_files_of_texts_become_files_of_vectors(tmp_path: Path, options: list[str]) -> None:
    """All kinds of files give the same vectors; texts that are too long are cut if asked."""
    found = []
    for suffix in ("txt", "csv", "jsonl"):
        source, target = write_texts(tmp_path / f"in.{suffix}"), tmp_path / f"{suffix}.npy"
        words = ["embed", str(source), "--out", str(target), "--disable-tqdm", "--truncate"]
        words += options
        assert main(words) == 0
        found.append(np.load(target))
    assert found[0].shape == (3, 32)
    assert np.allclose(np.linalg.norm(found[0], axis=1), 1, atol=1e-6)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    target = tmp_path / "out.jsonl"
    words = ["embed", str(tmp_path / "in.csv"), "--out", str(target), "--truncate", *options]
    assert main(words) == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), found[0])


def test_what_quire_embed_refuses(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_texts(tmp_path / "in.csv")
    for words, message in (
        ([str(tmp_path / "none.csv"), "--out", "x.npy"], "the file does not exist"),
        ([str(source), "--out", "x.txt"], "--out must end in .npy, .jsonl, .parquet"),
        ([str(source), "--out", str(tmp_path / "x.npy"), "--column", "body"], "no column 'body'"),
        ([str(source), "--out", str(tmp_path / "x.npy")], "in.csv, row 3: This model's maximum"),
        ([str(source), "--out", str(tmp_path / "x.npy")], "--truncate cuts such texts"),
    ):
        assert main(["embed", *words, *options]) != 0
        assert message in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"text": "red"}\n{"text":\n')
    assert main(["embed", str(tmp_path / "bad.jsonl"), "--out", "x.npy", *options]) != 0
    assert "line 2: must be JSON" in capsys.readouterr().err
    assert not (tmp_path / "x.npy").exists()


def test_a_text_that_is_too_long_has_its_error_in_a_column(
    tmp_path: Path, options: list[str]
) -> None:
    source, target = write_texts(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    assert main(["embed", str(source), "--out", str(target), *options]) == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [len(row["embedding"] or []) for row in rows] == [32, 32, 0]
    assert "--truncate cuts such texts" in rows[2]["embedding_error"]
    assert rows[0]["embedding_error"] is None


def test_lines_of_a_batch(tmp_path: Path, options: list[str]) -> None:
    lines = [
        {"custom_id": "e", "url": "/v1/embeddings", "body": {"input": "red"}},
        {"custom_id": "r", "url": "/v1/rerank", "body": {"query": "red", "documents": ["red"]}},
        {
            "custom_id": "b",
            "url": "/v1/embeddings",
            "body": {"input": "red", "encoding_format": "bytes"},
        },
        {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "red"}},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["run-batch", "-i", str(source), "-o", str(target), *options]) == 0
    replies = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(replies[0]["response"]["body"]["data"][0]["embedding"]) == 32
    assert replies[1]["response"]["body"]["results"][0]["relevance_score"] == pytest.approx(1)
    assert "must be float or base64" in replies[2]["error"]["message"]
    assert "generates no text" in replies[3]["error"]["message"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """In Parquet too, where the first column would be lost."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = [arrow.array(["first"]), arrow.array(["second"])]
    table = arrow.Table.from_arrays(columns, names=["text", "text"])
    parquet.write_table(table, tmp_path / "two.parquet")
    with pytest.raises(ConfigError, match="every column needs a name of its own; two are 'text'"):
        RowFile.open(str(tmp_path / "two.parquet"))
