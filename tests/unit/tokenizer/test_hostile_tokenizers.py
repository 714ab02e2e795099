"""Tokenizers that the Rust library does not survive: our own error, at load or for one text."""

from __future__ import annotations

import base64
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from trained_tokenizers import metaspace, save

from quire.errors import CheckpointError, RequestError
from quire.tokenizer import Tokenizer, trial
from quire.tokenizer.growth import MAX_GROWTH
from quire.tokenizer.trial import try_out

LETTERS = {letter: place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "quire" / "tokenizers"


def bpe(**model: Any) -> Json:
    return {"type": "BPE", "vocab": LETTERS, "merges": [], **model}


def write(directory: Path, model: Json | None = None, **parts: Any) -> Path:
    fields = {"version": "1.0", "added_tokens": [], "model": model or bpe(), **parts}
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(fields))
    return directory


def replace(pattern: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def split(pattern: str) -> Json:
    split = {"type": "Split", "pattern": {"Regex": pattern}}
    return {**split, "behavior": "Isolated", "invert": False}


def template(pieces: list[Json], num_ids: int = 1) -> Json:
    ids = {"id": "a", "ids": [0] * num_ids, "tokens": ["a"] * num_ids}
    return {
        "type": "TemplateProcessing", "single": pieces, "pair": [*pieces, TEXT_B],
        "special_tokens": {"a": ids},
    }  # fmt: skip


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TEXT_B = {"Sequence": {"id": "B", "type_id": 0}}
MARK = {"SpecialToken": {"id": "a", "type_id": 0}}


@pytest.mark.parametrize(
    "parts",
    [
        {"model": bpe(continuing_subword_prefix="##", merges=[["a", "b"]])},
        {"model": bpe(dropout=5)},
        {"normalizer": {"type": "Precompiled"}},
        {"pre_tokenizer": split("(?<n>a|\\g<n>b\\g<n>)")},
        {"pre_tokenizer": split("(?:" * 10_000 + ")" * 10_000)},
    ],
)
def test_the_library_fails_at_load(tmp_path: Path, parts: Json) -> None:
    write(tmp_path, **parts)
    try_out(tmp_path)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: the tokenizers library (re|pa)"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "a"),
        ({"pre_tokenizer": split("(a+)+$")}, "a" * 40 + "!"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "u"}}, "b"),
    ],
)
def test_the_library_fails_on_a_text(tmp_path: Path, parts: Json, text: str) -> None:
    tokenizer = Tokenizer.from_directory(write(tmp_path, **parts))
    for _ in range(2):
        with pytest.raises(RequestError, match="cannot encode this text: the tokenizers library"):
            tokenizer.encode(text)


class PanicException(BaseException):
    """No `Exception`, as the library's: unless it becomes one, it ends whatever called."""


def panic(*_: object, **__: object) -> str:
    raise PanicException("index out of bounds")


class _Panicking:
    """A loaded tokenizer whose methods of these names panic."""

    def __init__(self, backend: Any, *methods: str) -> None:
        self._backend, self._methods = backend, methods

    def __getattr__(self, name: str) -> Any:
        return panic if name in self._methods else getattr(self._backend, name)


def test_a_panic_on_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, metaspace()))
    broken = _Panicking(tokenizer.backend, "encode_batch_fast")
    monkeypatch.setattr(tokenizer, "backend", broken)
    with pytest.raises(RequestError, match="library panics: index out of bounds"):
        tokenizer.encode("text")


def test_a_panic_on_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, metaspace()))
    monkeypatch.setattr(tokenizer, "backend", _Panicking(tokenizer.backend, "decode"))
    with caplog.at_level(logging.WARNING, "quire"):
        assert [tokenizer.decode([1, 2]) for _ in range(3)] == ["\ufffd"] * 3
    assert caplog.text.count("cannot decode some tokens") == 1


def charsmap(longest: int) -> str:
    return base64.b64encode(bytes(4) + b"a\0" + b"b" * longest + b"\0").decode()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [replace("a", "aa")] * 40}),
        ("normalizer", {"type": "Sequence", "normalizers": [replace("", "ab")] * 30}),
        ("normalizer", {"type": "Prepend", "prepend": "x" * MAX_GROWTH}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": charsmap(2000)}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 40}),
        ("decoder", {"type": "Sequence", "decoders": [replace("a", "aa")] * 2000}),
        ("post_processor", template([MARK, TEXT], 2000)),
        (
            "post_processor",
            {"type": "Sequence", "processors": [template([TEXT, TEXT])] * 20},
        ),
    ],
)
def test_a_text_may_not_explode(tmp_path: Path, part: str, value: Json) -> None:
    write(tmp_path, **{part: value})
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: the {part} makes a text up to"):
        Tokenizer.from_directory(tmp_path)


def test_dropout_is_left_out(tmp_path: Path) -> None:
    """A text has the same tokens each time."""
    vocab = {**LETTERS, "ab": 26, "cd": 27}
    write(tmp_path, bpe(vocab=vocab, merges=[["a", "b"], ["c", "d"]], dropout=0.5))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert {tuple(tokenizer.encode("abcd" * 10)) for _ in range(20)} == {(26, 27) * 10}


def test_a_good_one_is_tried_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        write(tmp_path / name)
    try_out(tmp_path / "first")
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(trial, "ChildProcess", None)
    try_out(tmp_path / "first")
    try_out(tmp_path / "second")
    (tmp_path / "second" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TypeError):
        try_out(tmp_path / "second")


def test_several_at_once_and_a_full_memory(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_MAX_REMEMBERED", 2)
    directories = [write(tmp_path / str(i), bpe(unk_token="abc"[i])) for i in range(3)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(try_out, directories * 2))
    assert 1 <= len(list(cache.iterdir())) <= 3


@pytest.mark.parametrize("home", ["file", "missing"])
def test_a_place_that_cannot_be_written(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    if home == "file":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", _no_home)
        monkeypatch.setattr(Path, "expanduser", _no_home)
    for _ in range(2):
        try_out(write(tmp_path / "model"))


def _no_home(*_: object) -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_one_that_asks_for_all_memory(tmp_path: Path, cache: Path) -> None:
    huge = base64.b64encode(b"\xff\xff\xff\xff" * 100).decode()
    write(tmp_path, normalizer={"type": "Precompiled", "precompiled_charsmap": huge})
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: .*more than 2.00 GiB of memory, .*loads it"
    ):
        try_out(tmp_path)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("thread '<unnamed>' has overflowed its stack", r"aborts the process \(thread '<unnamed>'"),
        ("", "aborts the process without a message"),
        ("memory allocation of 9 bytes failed", "needs more than .* of memory"),
    ],
)
def test_an_abort_is_explained_by_what_the_process_wrote(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = "os.read(0, 5); os.write(1, b'D' + bytes(4))"  # to the first job
    code = f"import os; {reply}; os.read(0, 5); os.write(2, {words.encode()!r}); os.abort()"
    monkeypatch.setattr(trial, "dying_command", lambda *_: [sys.executable, "-c", code])
    with pytest.raises(CheckpointError, match=f"tokenizer.json: .*{message}.*, as it loads it"):
        try_out(write(tmp_path))


def test_one_that_never_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_CPU_S", 2)
    write(tmp_path, pre_tokenizer=split("(?:a|a){20}[cd]"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*more than 2 s .*encodes 'aaa"):
        try_out(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "death"),
    [
        ("[a-z]*[a-z]*[0-9]", "takes more than 2 s of processor time"),
        ("([a-z]+)+$", "gives up on one of its regular expressions"),
    ],
)
def test_an_expression_that_needs_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, death: str
) -> None:
    monkeypatch.setattr(trial, "_CPU_S", 2)
    write(tmp_path, pre_tokenizer=split(pattern))
    with pytest.raises(CheckpointError, match=f"tokenizer.json: the tokenizers library {death}"):
        try_out(tmp_path)


def test_without_an_interpreter_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for place in ("", str(tmp_path / "none")):
        monkeypatch.setattr("sys.executable", place)
        with caplog.at_level(logging.WARNING, "quire"):
            try_out(write(tmp_path / "model"))
    assert caplog.text.count("without a trial") == 2
