"""Tiny GGUF models with an `mmproj` file, whose numbers depend on names and shapes alone, and a
picture that no image processor resizes. Written to a folder each:

    python tests/models/mtmd_files.py DIR
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

from gguf_images import ImagesModel
from vision_cases import GGUF_CASES

SIZES = {
    "idefics3": (64, 64), "llava-siglip": (28, 28), "qwen2-vl": (24, 40), "qwen2.5-vl": (24, 40),
    "qwen3-vl": (24, 40), "gemma3": (32, 32),
}  # fmt: skip
"""Height and width of the picture, by the case of `vision_cases`. Others are not compared: after a
class token, llama.cpp's positions are those of the next patch (CLIP, InternVL), and rows of Pixtral
and Mistral 3 include the tokens at the ends of lines."""


def write(name: str, folder: Path) -> None:
    """`model.gguf`, `mmproj.gguf` and `picture.png`."""
    from PIL import Image

    GGUF_CASES[name](folder / "checkpoint")
    model = ImagesModel(folder / "checkpoint")
    model.write_text(folder / "model.gguf")
    # llama.cpp knows one size of windows.
    keys = {"clip.vision.window_size": 112} if name == "qwen2.5-vl" else None
    model.write_projector(folder / "mmproj.gguf", keys, _numbers)
    pixels = np.random.default_rng(7).integers(0, 256, (*SIZES[name], 3)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "picture.png")


def _numbers(name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
    is_factor = array.ndim == 1 and name.endswith("weight")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.normal(float(is_factor), 0.2, array.shape).astype(np.float32)


if __name__ == "__main__":
    for case in SIZES:
        write(case, Path(sys.argv[1]) / case)
