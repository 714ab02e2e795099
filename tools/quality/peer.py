"""llama.cpp on the same texts: its own files of each type, with its own arithmetic.

`peer_rows` runs this file with another interpreter, which needs PyPI's llama-cpp-python and nothing
of Quire's.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tools.quality.measure import Row
    from tools.quality.subjects import Subject

    from quire.backends.base import Backend

FILE_TYPES = {
    "Q4_1, as it is": None, "F16": 1, "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q4_K_M": 15,
    "Q4_0": 2, "IQ4_NL": 25,
}  # fmt: skip
"""`enum llama_ftype`, of llama.h."""


def peer_rows(python: Path, path: Path, subject: Subject, backend: Backend) -> Iterator[Row]:
    """A line for each type of file; sizes are those of the file. `python`: with llama.cpp."""
    from tools.quality.formats import TRUTH, with_gguf_py
    from tools.quality.measure import logits_of, row_of

    truths = list(logits_of(backend, subject, TRUTH, with_gguf_py()[1]))
    count = sum(int(np.prod(param.shape)) for param in subject.program.params())
    with tempfile.TemporaryDirectory() as directory:
        tokens = Path(directory) / "tokens.json"
        tokens.write_text(json.dumps([list(map(int, text.tokens)) for text in subject.texts]))
        for name, number in FILE_TYPES.items():
            out = Path(directory) / "logits.npz"
            words = [str(python), __file__, str(path), str(number), str(tokens), str(out)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{python} failed:\n{done.stderr[-2000:]}")
            with np.load(out) as found:
                size = float(found["bytes"]) / count
                logits = [found[str(i)][text.first - 1 :] for i, text in enumerate(subject.texts)]
            yield row_of(f"llama.cpp {name}", subject, truths, logits, size)


def _logits(path: str, number: str, tokens: str, out: str) -> None:
    """All logits of each text by llama.cpp, and the bytes of the file."""
    lib = importlib.import_module("llama_cpp")
    if number != "None":
        how = lib.llama_model_quantize_default_params()
        how.ftype, how.allow_requantize = int(number), True
        other = out + ".gguf"
        if lib.llama_model_quantize(path.encode(), other.encode(), how) != 0:
            raise RuntimeError(f"llama.cpp does not write type {number}")
        path = other
    found: dict[str, Any] = {"bytes": np.array(Path(path).stat().st_size)}
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    asked = lib.llama_context_default_params()
    asked.n_ctx = asked.n_batch = asked.n_ubatch = 1024
    asked.n_threads = asked.n_threads_batch = 2
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    for index, ids in enumerate(json.loads(Path(tokens).read_text())):
        context = lib.llama_init_from_model(model, asked)
        count = len(ids) - 1
        batch = lib.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for place, token in enumerate(ids[:-1]):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        if lib.llama_decode(context, batch) != 0:
            raise RuntimeError("llama.cpp does not compute these tokens")
        rows = [lib.llama_get_logits_ith(context, place) for place in range(count)]
        found[str(index)] = np.stack([np.ctypeslib.as_array(row, (size,)).copy() for row in rows])
        lib.llama_batch_free(batch)
        lib.llama_free(context)
    np.savez(out, **found)


if __name__ == "__main__":
    _logits(*sys.argv[1:])
