"""`ImageEncoder`: runs the programs of a model's image encoder, a tile at a time; `VisionStore`:
its tensors in the form of the programs.

A tile is one request of one step, so the bits of its rows depend on the tile alone. The step is
computed in pieces, between the steps of the text model. Created and called by the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Backend, CompiledModel, StepInPieces
from quire.backends.records import StepBatch, StepOutput, TokenRows
from quire.backends.registry import make_backend
from quire.config.quantization import Quantization
from quire.config.ranks import Rank
from quire.config.records import Dtype, EngineConfig
from quire.errors import BackendError, CheckpointError
from quire.images.rules import Resizing
from quire.models.media.model import Floats, TileStep, VisionModel, normalised
from quire.models.media.tower import PATCHES, PROJECTOR, VISION
from quire.planning.image_encoder import encoder_plans
from quire.program import Program, Tensor
from quire.weights import HostTensor, WeightStore, open_encoder
from quire.weights.dummy import DummyStore


class VisionStore(WeightStore):
    """The tensors of one program. The checkpoint stays open as long as this store.

    Kernels of convolutions are matrices, the class token is added to its row of the positions, and
    tables of given rows, which the checkpoint does not have, are zeros.
    """

    def __init__(self, store: WeightStore, vision: VisionModel, program: Program) -> None:
        """Raises CheckpointError if the checkpoint lacks a tensor, or has it in another shape."""
        self._store, self._vision = store, vision
        self._wanted = {part.name: part for param in program.params() for part in param.parts}
        self._known = set(store.names())
        for name, part in self._wanted.items():
            self._check(name, part)

    def names(self) -> Iterable[str]:
        return self._wanted.keys()

    def get(self, name: str) -> HostTensor:
        part = self._wanted.get(name)
        if part is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        if name.endswith(PATCHES):
            return _host(name, np.zeros(part.shape, np.float32))
        found = self._store.get(self._stored(name))
        class_row = self._vision.class_row
        if class_row is not None and name == VISION + class_row.positions:
            table = found.to_float32().reshape(part.shape).copy()
            table[0] += self._values(VISION + class_row.token)
            if class_row.patch_bias:  # a row of zeros becomes the bias of the patches
                table[0] -= self._values(VISION + class_row.patch_bias)
            return _host(name, table)
        return replace(found, name=name, shape=part.shape)

    def close(self) -> None:
        self._store.close()

    def check(self) -> None:
        self._store.check()

    def table(self, tensor: Tensor) -> NDArray[np.float32]:
        """A tensor that no program has, or the rows of it that are named, in float32."""
        self._check(tensor.name, tensor)
        found = self._store.get(self._stored(tensor.name)).to_float32().reshape(tensor.shape)
        if tensor.rows is None:
            return found
        runs = [found[..., first : first + count, :] for first, count in tensor.rows]
        return np.concatenate(runs, axis=-2)

    def _values(self, name: str) -> NDArray[np.float32]:
        return self._store.get(self._stored(name)).to_float32().reshape(-1)

    def _stored(self, name: str) -> str:
        """The tensor's name in the checkpoint."""
        vision = self._vision
        root, prefixes = (
            (VISION, vision.prefixes)
            if name.startswith(VISION)
            else (PROJECTOR, vision.projector_prefixes)
        )
        rest = name.removeprefix(root)
        found = next((one + rest for one in prefixes if one + rest in self._known), None)
        if found is None:
            raise CheckpointError(f"{self._store.source} has no tensor {prefixes[0] + rest!r}")
        return found

    def _check(self, name: str, part: Tensor) -> None:
        if name.endswith(PATCHES):
            return
        stored = self._stored(name)
        shape = self._store.shape(stored)
        # A kernel of a convolution over time is [rows, channels, taps].
        is_kernel = len(shape) > 3 or (len(shape) == 3 and shape[0] == part.shape[0])
        if prod(shape) != prod(part.shape) or not (is_kernel or _bare(shape) == part.shape):
            raise CheckpointError(
                f"{self._store.source}: tensor {stored!r} has shape {list(shape)}, but config.json "
                f"requires {list(part.shape)}"
            )


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading ones; that of a number is [1]."""
    return shape[1:] if len(shape) == 3 and shape[0] == 1 else shape or (1,)


def _host(name: str, values: NDArray[np.float32]) -> HostTensor:
    data = np.frombuffer(np.ascontiguousarray(values, np.float32).tobytes(), np.uint8)
    return HostTensor(name, "F32", values.shape, data, file="the image encoder")


class ImageEncoder:
    """Compiled programs of one encoder. One caller at a time."""

    def __init__(
        self,
        backend: Backend,
        vision: VisionModel,
        store: WeightStore | None,
        dtype: Dtype,
        max_model_len: int,
        quantization: Quantization | None = None,
    ) -> None:
        """Compiles the programs. `store` None: the weights are made up. `max_model_len`: most rows
        of a picture. `quantization`: as of `encoder_plans`. Raises CheckpointError and
        BackendError."""
        self.vision = vision
        self._tables = _tables(vision, store)
        self._models: list[CompiledModel] = []
        with ExitStack() as stack:
            for plan in encoder_plans(backend, vision, dtype, max_model_len, quantization):
                weights: WeightStore = DummyStore(plan.program)
                if store is not None:
                    weights = VisionStore(store, vision, plan.program)
                model = backend.compile(plan.program, weights, plan.kv, plan.options)
                stack.callback(model.close)
                self._models.append(model)
            stack.pop_all()

    def begin(self, tile: NDArray[np.uint8] | Floats) -> TileEncoding:
        """Begins with a tile: bytes [frames, height, width, 3], or a spectrum [frames, bins]. The
        tile before it is dropped."""
        return TileEncoding(self.vision, self._models, self._tables, tile)

    def close(self) -> None:
        """Frees the weights. Idempotent."""
        for model in self._models:
            model.close()


class TileEncoding:
    """A tile that is being encoded: one program after the other."""

    def __init__(
        self,
        vision: VisionModel,
        models: Sequence[CompiledModel],
        tables: list[Floats],
        tile: NDArray[np.uint8] | Floats,
    ) -> None:
        self._patching, self._tables = vision.patching, tables
        values: Any = tile
        self._size = (tile.shape[0], tile.shape[1])
        if isinstance(vision.resizing, Resizing):
            self._size = (tile.shape[1], tile.shape[2])
            values = normalised(values if len(tile) > 1 else values[0], vision.resizing)
        inputs: list[Callable[[Floats], TileStep]] = [self._of_tower]
        if vision.stem is not None:
            inputs.insert(0, self._patching.stem_step)
        if vision.projector is not None:
            inputs.append(self._of_projector)
        self._left = [*zip(models, inputs, strict=True)]
        self._running: StepInPieces | None = self._next(values)

    def _of_tower(self, values: Floats) -> TileStep:
        return self._patching.step(values, self._tables)

    def _of_projector(self, hidden: Floats) -> TileStep:
        return TileStep(self._patching.merged(hidden, self._size, self._tables))

    def _next(self, values: Floats) -> StepInPieces:
        """The next program, with the results of the one before."""
        model, step = self._left.pop(0)
        return model.in_pieces(batch_of(step(values)))

    def advance(self, seconds: float) -> Floats | None:
        """Computes for about `seconds`. Returns the rows of the text model [rows, width] when they
        are done, None before. Raises BackendError, also if a number is not finite."""
        end = time.perf_counter() + seconds
        if self._running is None:
            raise BackendError("the tile is encoded already")
        while (output := self._running.advance(end - time.perf_counter())) is not None:
            if not self._left:
                break
            self._running = self._next(_vectors(output))
            if time.perf_counter() >= end:
                return None
        if output is None:
            return None
        self._running = None
        rows = self._patching.ordered(_vectors(output), self._size, self._tables)
        if not np.isfinite(rows).all():
            raise BackendError("the encoder has computed a number that is not finite")
        return rows


def load_encoder(config: EngineConfig, backend: Backend, rank: Rank) -> ImageEncoder | None:
    """The encoder of an engine that takes images, for the first rank; None: there is none. The
    other ranks wait while it computes, so it has their threads, too, unless each has cores of its
    own. Raises CheckpointError and BackendError."""
    model = config.model
    from quire.models.media.families import vision_model  # for models with images alone

    vision = None if model.images is None else vision_model(model.hf_config)
    if vision is None or rank.number:
        return None
    count = len(config.parallel.ranks_of_node(0))
    if count > 1 and config.device.cores is None:
        device = config.device
        backend = make_backend(replace(device, num_threads=count * device.num_threads))
    options = (model.dtype, model.max_positions, model.quantization)
    if model.weights == "dummy":
        return ImageEncoder(backend, vision, None, *options)
    with closing(open_encoder(model.path)) as store:
        return ImageEncoder(backend, vision, store, *options)


def _tables(vision: VisionModel, store: WeightStore | None) -> list[Floats]:
    tensors = vision.patching.tables
    if store is None:
        return [np.zeros(one.slot_shape, np.float32) for one in tensors]
    found = VisionStore(store, vision, vision.tower)
    return [found.table(one) for one in tensors]


def batch_of(step: TileStep) -> StepBatch:
    """A step that has one tile and nothing else."""
    count = len(step.rows)
    return StepBatch(
        token_ids=np.zeros(count, np.int32),
        positions=np.arange(count, dtype=np.int32),
        seq_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_tables=np.zeros((1, 0, 0), np.int32),
        logits_rows=np.arange(step.num_skipped, count, dtype=np.int32),
        sampling=None,
        input_rows=[TokenRows(0, step.rows)],
        axis_positions=step.axis_positions,
        spans=step.spans,
    )


def _vectors(output: StepOutput) -> Floats:
    if output.vectors is None:
        raise BackendError("the encoder has no result")
    return output.vectors
