"""Records the rows that llama.cpp computes for pictures, for `test_rows_of_llamacpp.py`.

    python tests/models/mtmd_files.py DIR
    /venvs/llamacpp/bin/python tests/models/record_mtmd_rows.py DIR > tests/models/mtmd_rows.json

Imports the standard library and llama-cpp-python (0.3.36) alone.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp
from llama_cpp import mtmd_cpp

NUM_NUMBERS = 6
"""Numbers of a row that are kept."""


def rows(folder: Path) -> list[list[float]]:
    """The beginnings of the rows of a picture's tiles, in order."""
    model = llama_cpp.llama_model_load_from_file(
        str(folder / "model.gguf").encode(), llama_cpp.llama_model_default_params()
    )
    params = mtmd_cpp.mtmd_context_params_default()
    params.use_gpu = params.print_timings = params.warmup = False
    params.n_threads = 1
    context = mtmd_cpp.mtmd_init_from_file(str(folder / "mmproj.gguf").encode(), model, params)
    picture = str(folder / "picture.png").encode()
    bitmap = mtmd_cpp.mtmd_helper_bitmap_init_from_file(context, picture, False)
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    text = mtmd_cpp.mtmd_default_marker()
    given = mtmd_cpp.mtmd_input_text(text, len(text), False, True)
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
    if mtmd_cpp.mtmd_tokenize(context, chunks, ctypes.byref(given), bitmaps, 1):
        raise RuntimeError(f"{folder}: the picture cannot be used")
    width, found = llama_cpp.llama_model_n_embd_inp(model), list[list[float]]()
    for index in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
        chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, index)
        if mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk):
            if mtmd_cpp.mtmd_encode_chunk(context, chunk):
                raise RuntimeError(f"{folder}: the picture cannot be encoded")
            values = mtmd_cpp.mtmd_get_output_embd(context)
            for row in range(mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)):
                first = row * width
                found.append([round(values[first + i], 5) for i in range(NUM_NUMBERS)])
    return found


def main() -> None:
    """Prints the rows of each folder."""
    folders = sorted(one for one in Path(sys.argv[1]).iterdir() if one.is_dir())
    lines = [f"{json.dumps(one.name)}: {json.dumps(rows(one))}" for one in folders]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
