"""The image encoder of a checkpoint without an engine: how long it takes, and how much it computes.

Used by `image_child.py`, and alone to see where the time goes:

    python bench/helpers/image_encoder.py DIR PICTURE
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quire.backends.cpu import CpuBackend
from quire.backends.cpu.model import CpuModel
from quire.config.checkpoint.model_files import read_config
from quire.images.picture import picture_of
from quire.images.rules import Layout
from quire.models.media.families import vision_model
from quire.models.media.model import normalised
from quire.models.media.settings import with_image_processor
from quire.planning.image_encoder import encoder_plans
from quire.program import Attention, Linear, Program
from quire.weights.dummy import DummyStore
from quire.worker.image_encoder import ImageEncoder, batch_of


class Encoder:
    """An encoder with made-up weights in bfloat16."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        path = Path(checkpoint)
        vision = vision_model(with_image_processor(read_config(path), path))
        if vision is None:
            raise SystemExit(f"{checkpoint} has no image encoder")
        self.vision = vision
        backend = CpuBackend(options.get("num_threads"))
        length = options.get("max_model_len", 4096)
        self.encoder = ImageEncoder(backend, vision, None, "bfloat16", length)

    def measure(self, data: bytes) -> tuple[float, int]:
        """Seconds and floating-point operations for the tiles of a picture, without decoding."""
        picture = picture_of(data, self.vision.resizing)
        seconds, operations = 0.0, 0
        for tile in self.vision.tiles(picture.layout, picture.pixels):
            begin = time.perf_counter()
            rows = self.encoder.begin(tile[None]).advance(math.inf)
            assert rows is not None
            seconds += time.perf_counter() - begin
            patches = self.vision.patching.step(np.zeros(tile.shape, np.float32), self.tables)
            operations += num_operations(self.vision.tower, len(patches.rows))
            if self.vision.projector is not None:
                operations += num_operations(self.vision.projector, len(rows))
        return seconds, operations

    @property
    def tables(self) -> list[Any]:
        """Tensors of a checkpoint that the patches read."""
        return [np.zeros(one.slot_shape, np.float32) for one in self.vision.patching.tables]


def num_operations(program: Program, rows: int) -> int:
    """Multiplications and additions of the products, for rows that see each other."""
    total = 0
    for op in program.ops:
        if isinstance(op, Linear):
            total += 2 * rows * op.x.dim * sum(out.dim for out in op.outs)
        elif isinstance(op, Attention):
            total += 4 * rows * rows * op.num_heads * op.head_dim
    return total


def main() -> None:
    """Prints the time of the parts for one picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    encoder = Encoder(args.directory, {"num_threads": args.threads})
    data = args.picture.read_bytes()
    encoder.measure(data)
    begin = time.perf_counter()
    picture = picture_of(data, encoder.vision.resizing)
    print(f"decoding and resizing: {time.perf_counter() - begin:.3f} s")
    seconds, operations = encoder.measure(data)
    print(f"encoder: {seconds:.3f} s, {operations / seconds / 1e12:.2f} TFLOP/s")
    tile = encoder.vision.tiles(picture.layout, picture.pixels)[0]
    _print_tile(encoder, tile, CpuBackend(args.threads))


def _print_tile(encoder: Encoder, tile: Any, backend: CpuBackend) -> None:
    """The parts of one tile's time, in one piece."""
    vision = encoder.vision
    begin = time.perf_counter()
    step = vision.patching.step(normalised(tile, vision.resizing), encoder.tables)
    print(f"first tile: patches {time.perf_counter() - begin:.3f} s")
    plan = encoder_plans(backend, vision, "bfloat16", vision.num_rows(Layout((tile.shape[:2],))))[0]
    options = replace(plan.options, max_piece_tokens=0)
    model = backend.compile(plan.program, DummyStore(plan.program), plan.kv, options)
    assert isinstance(model, CpuModel)
    batch = batch_of(step)
    model.step(batch)
    model.profile(True)
    begin = time.perf_counter()
    model.step(batch)
    seconds = time.perf_counter() - begin
    operations = num_operations(vision.tower, len(step.rows))
    print(f"tower {seconds:.3f} s, {operations / seconds / 1e12:.2f} TFLOP/s")
    for name, part in model.profile_seconds().items():
        print(f"    {part * 1e3:9.1f} ms  {part / seconds:6.1%}  {name}")


if __name__ == "__main__":
    main()
