"""Damaged GGUF files of every architecture, through all that is done with a file before the engine
computes: header, configuration, tokenizer, program, weights, plan. Each gives a clear error or a
model, in bounded time and memory.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gguf_dense_cases import DENSE
from gguf_gemma_cases import GEMMA
from gguf_harness import as_numbers, model_file
from gguf_hybrid_cases import GGUF_HYBRIDS
from gguf_mixture_cases import MIXTURES
from model_cases import Case

from quire.config.checkpoint.model_files import read_config
from quire.errors import QuireError
from quire.gguf.keys import Keys
from quire.gguf.model_config import generation_config, model_config
from quire.gguf.split import files_of, read_headers
from quire.gguf.tokenizers.files import token_texts, tokenizer_files
from quire.models import as_asked, build_program, name_map
from quire.planning.engine_args import EngineArgs
from quire.planning.plan import plan_engine
from quire.tokenizer import Tokenizer
from quire.weights import bind, open_checkpoint
from quire.weights.store import WeightStore

pytest.importorskip("gguf")
import gguf_dense
import gguf_gemma
import gguf_hybrids
import gguf_mixtures
from gguf_parts import mutated, write_split


def _hybrid(architecture: str, _: str, config: Any, tensors: Any) -> Any:
    return gguf_hybrids.HybridFile(architecture, config, tensors)


ALL = [
    *((case, gguf_dense.DenseFile) for case in DENSE),
    *((case, gguf_mixtures.MixtureFile) for case in MIXTURES),
    *((case, gguf_gemma.architecture_file) for case in GEMMA),
    *((case, partial(_hybrid, architecture)) for architecture, case in GGUF_HYBRIDS),
]
SEED = 1
_FEW, _MANY = 12, 1500
"""Files of an architecture; the long test has 1e5 in all."""
_MEMORY = 1 << 30
"""Bytes that a file may take beside what is there."""
_SECONDS = 20


@contextmanager
def _bounded() -> Iterator[None]:
    """Within a bound of memory; a file that takes too long gets a TimeoutError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + _MEMORY

    def late(*_: object) -> None:
        raise TimeoutError(f"longer than {_SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (most, old[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, old)
        signal.signal(signal.SIGALRM, handler)


def _use(path: Path, directory: Path) -> None:
    """What a user's command does with a file, without the cache of model directories."""
    files = files_of(path)
    keys = Keys(read_headers(files))
    texts = {"config.json": json.dumps(model_config(keys)), **tokenizer_files(keys)}
    texts["generation_config.json"] = json.dumps(generation_config(keys, token_texts(keys)))
    for name, text in texts.items():
        (directory / name).write_text(text)
    config = as_asked(read_config(directory), "gguf")
    program = build_program(config)
    store = bind(program, open_checkpoint(directory), name_map(config).canonical)
    try:
        _weights(store)
    finally:
        store.close()
    plan_engine(EngineArgs(str(directory)))
    tokenizer = Tokenizer.from_directory(directory)
    tokenizer.decode(tokenizer.encode("Hello, 123 worlds!\n"))


def _weights(store: WeightStore) -> None:
    for name in list(store.names())[:12]:
        store.stored(name)
        store.get(name)


def _outcome(path: Path, directory: Path, what: str) -> str | None:
    """What the error says; None: the file is read. Raises AssertionError for another error."""
    try:
        _use(path, directory)
    except QuireError as error:
        return str(error)
    except BaseException as error:
        raise AssertionError(f"{what}: {error!r}") from error
    return None


def _type_of(name: str) -> str:
    return "Q8_0" if "ffn" in name and "norm" not in name else "F32"


def _attack(case: Case, kind: Any, tmp_path: Path, count: int, seed: int) -> Counter[str]:
    """How many files were refused, and how many read."""
    type_of = as_numbers if isinstance(kind, partial) else _type_of  # hybrids have odd sizes
    good = model_file(kind, case, tmp_path / "checkpoint").write(tmp_path / "good.gguf", type_of)
    raw, done = good.read_bytes(), Counter[str]()
    header_end = min(t.offset for t in read_headers([good])[0].tensors.values())
    generator = random.Random(zlib.crc32(case.name.encode()) + seed)
    print(f"{case.name}: seed {seed}, {count} files")
    with _bounded(), tempfile.TemporaryDirectory(dir=tmp_path) as place:
        directory = Path(place)
        for number in range(count):
            if number and number % 15 == 0:
                path = write_split(raw, directory, generator)
            else:
                path = directory / "model.gguf"
                path.write_bytes(raw if number == 0 else mutated(raw, header_end, generator))
            signal.alarm(_SECONDS)
            said = _outcome(path, directory, f"{case.name}, seed {seed}, file {number}")
            if said is not None and number == 0:
                raise AssertionError(f"the right file of {case.name}: {said}")
            done["read" if said is None else "refused"] += 1
            signal.alarm(0)
            for file in directory.iterdir():
                file.unlink()
    return done


@pytest.mark.sweep(16)
@pytest.mark.parametrize(("case", "kind"), ALL, ids=[str(case) for case, _ in ALL])
def test_damaged_files(case: Case, kind: Any, tmp_path: Path) -> None:
    done = _attack(case, kind, tmp_path, _FEW, SEED)
    assert done["refused"] >= 4


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("case", "kind"), ALL, ids=[str(case) for case, _ in ALL])
def test_a_hundred_thousand_damaged_files(case: Case, kind: Any, tmp_path: Path) -> None:
    done = _attack(case, kind, tmp_path, _MANY, SEED + 1)
    assert done["refused"] > _MANY // 4
    assert done["read"] > _MANY // 100
