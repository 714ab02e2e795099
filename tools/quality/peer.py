"""llama.cpp on the same texts: its own files of each type, with its own arithmetic.

`peer_rows` runs this file as a process of its own, which needs nothing of Quire's but
`_llama_cpp_cpu`, the extension module in the wheels of PyPI's llama-cpp-cffi.
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


def peer_rows(folder: Path, path: Path, subject: Subject, backend: Backend) -> Iterator[Row]:
    """A line for each type of file; sizes are those of the file. `folder`: of the module."""
    from tools.quality.formats import TRUTH, with_gguf_py
    from tools.quality.measure import logits_of, row_of

    truths = list(logits_of(backend, subject, TRUTH, with_gguf_py()[1]))
    count = sum(int(np.prod(param.shape)) for param in subject.program.params())
    with tempfile.TemporaryDirectory() as directory:
        tokens = Path(directory) / "tokens.json"
        tokens.write_text(json.dumps([list(map(int, text.tokens)) for text in subject.texts]))
        for name, number in FILE_TYPES.items():
            out = Path(directory) / "logits.npz"
            words = [sys.executable, __file__, str(folder), str(path), str(number)]
            words += [str(tokens), str(out)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with np.load(out) as found:
                size = float(found["bytes"]) / count
                logits = [found[str(i)][text.first - 1 :] for i, text in enumerate(subject.texts)]
            yield row_of(f"llama.cpp {name}", subject, truths, logits, size)


def _logits(folder: str, path: str, number: str, tokens: str, out: str) -> None:
    """All logits of each text by llama.cpp, and the bytes of the file."""
    sys.path.insert(0, folder)
    module = importlib.import_module("_llama_cpp_cpu")
    lib, ffi = module.lib, module.ffi
    if number != "None":
        how = ffi.new("llama_model_quantize_params *", lib.llama_model_quantize_default_params())
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
    size = lib.llama_n_vocab(lib.llama_model_get_vocab(model))
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
        found[str(index)] = np.stack(
            [np.frombuffer(ffi.buffer(row, 4 * size), np.float32) for row in rows]
        )
        lib.llama_batch_free(batch)
        lib.llama_free(context)
    np.savez(out, **found)


if __name__ == "__main__":
    _logits(*sys.argv[1:])
