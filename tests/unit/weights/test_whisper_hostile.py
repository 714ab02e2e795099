"""Damaged files of Whisper models: each gives a clear error or a model, in bounded memory."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import damaged_file
from sweeps import examples
from whisper_files import Model, random_model, write_ct2, write_ggml

from quire.config.model_lookup.hub import resolve_model
from quire.config.whisper.tensors import read_whisper
from quire.errors import CheckpointError, ModelError
from quire.tokenizer import Tokenizer
from quire.weights import open_checkpoint

_NUMBERS = [0, 1, 2, 3, 4, 5, 7, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1]


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _use(path: Path) -> None:
    """All that is done with a file before the engine takes over."""
    directory = resolve_model(str(path))
    store = open_checkpoint(directory)
    for name in store.names():
        assert store.describe(name).shape == store.stored(name).shape
    store.check()
    store.close()


def _headers(path: Path, raw: bytes) -> list[int]:
    """Places of bytes that are not numbers of tensors."""
    end, found = 0, list[int]()
    tensors = read_whisper(path).tensors.values()
    for begin, size in sorted((one.offset, one.num_bytes) for one in tensors):
        found += range(max(end, begin - 200), begin)
        end = begin + size
    return [*range(64), *found, *range(end, len(raw))]


def _damaged(raw: bytes, places: list[int], rng: random.Random) -> bytes:
    file = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        place = min(rng.choice(places), len(file))
        match rng.randrange(6):
            case 0:
                del file[place:]
            case 1:
                del file[place : place + rng.choice([1, 4, 100])]
            case 2:
                file[place:place] = rng.choice([b"\0", b"\xff" * 8, file[place - 60 : place]])
            case 3:
                file[place : place + 4] = rng.choice(_NUMBERS).to_bytes(4, "little")
            case 4:
                file[place : place + 1] = bytes([rng.randrange(256)])
            case _:
                other = rng.choice(places)
                file[place : place + 40] = raw[other : other + 40]
    return bytes(file)


def _attack(path: Path, count: int, damage: Callable[[bytes], bytes], target: Path) -> int:
    """How many files were refused; `target`: the one that is damaged."""
    raw, said = target.read_bytes(), list[str]()
    for number in range(count):
        target.write_bytes(damage(raw))
        try:
            _use(path)
        except ModelError as error:
            said.append(str(error))
        except BaseException as error:
            raise AssertionError(f"file {number}: {error!r}") from error
    target.write_bytes(raw)
    assert [words for words in said if str(path.parents[1]) not in words] == []
    return len(said)


@pytest.mark.parametrize("kind", ["float32", "int8", "F16", "Q5_0"])
def test_a_thousand_damaged_files(tmp_path: Path, cache: Path, model: Model, kind: str) -> None:
    rng, count = random.Random(kind), examples(1000)
    if kind in ("float32", "int8"):
        path = write_ct2(tmp_path / "m", model, kind) / "model.bin"
    else:
        path = write_ggml(tmp_path / "m.bin", model, kind)
    places = _headers(path, path.read_bytes())
    _use(path)
    tracemalloc.start()
    try:
        few = _attack(path, 50, lambda raw: _damaged(raw, places, rng), path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < path.stat().st_size + (16 << 20)
    refused = _attack(path, count, lambda raw: _damaged(raw, places, rng), path)
    assert few > 10
    assert count * 0.4 < refused < count
    shutil.rmtree(cache)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocabulary.json"])
def test_damaged_settings(tmp_path: Path, model: Model, name: str) -> None:
    rng = random.Random(name)
    path = write_ct2(tmp_path / "m", model, has_tokenizer=name != "vocabulary.json")
    _use(path)
    refused = _attack(path, examples(120), lambda raw: damaged_file(rng, raw), path / name)
    assert refused > 3


def test_a_file_that_ends_anywhere(tmp_path: Path, model: Model) -> None:
    rng = random.Random(1)
    for path in (
        write_ct2(tmp_path / "m", model) / "model.bin",
        write_ggml(tmp_path / "m.bin", model),
    ):
        raw = path.read_bytes()
        for length in [*range(4, 60), *(rng.randrange(len(raw)) for _ in range(60)), len(raw) - 1]:
            path.write_bytes(raw[:length])
            with pytest.raises(CheckpointError, match=r"truncated|has no tensor|must have a"):
                read_whisper(path)


def test_special_tokens_at_other_ids_are_refused(tmp_path: Path, model: Model) -> None:
    """The tokenizer must have them where the model has them."""
    path = write_ct2(tmp_path / "m", model, has_tokenizer=False)
    directory = resolve_model(str(path))
    file = directory / "tokenizer.model"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    tokenizer = Tokenizer.from_directory(directory)
    end = model.tokenizer.token_to_id("<|endoftext|>")
    assert tokenizer.backend.token_to_id("<|endoftext|>") == end
