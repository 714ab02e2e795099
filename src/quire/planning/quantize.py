"""Makes a model directory with packed weights: what `quire quantize` does.

Reads the weights one after the other, so that a model larger than the memory can be packed too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quire.backends.registry import choose_device, make_backend
from quire.config.engine_args import EngineArgs
from quire.config.model_files import has_file, read_bytes
from quire.config.places.hub import TEXT_PATTERNS
from quire.errors import ConfigError
from quire.files import replacing, write_text
from quire.log import get_logger, phase
from quire.planning.checkpoint import Checkpoint, read_checkpoint
from quire.planning.choices import Arithmetic, settle_arithmetic
from quire.program import Program
from quire.program.passes import run_passes
from quire.units import MiB
from quire.weights import PACKED_NAME, PackedWriter, WeightStore, bind, open_checkpoint
from quire.weights.dummy import DummyStore
from quire.weights.quantised.store import as_shipped

logger = get_logger(__name__)

_MAX_TEXT_BYTES = 256 * MiB


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What came of it."""

    path: Path
    num_bytes: int
    arithmetic: Arithmetic
    isa: str


def quantize_model(args: EngineArgs, out: Path) -> PackedModel:
    """Packs the model of `args` into the new directory `out`.

    Raises ConfigError if `out` holds something already, if it cannot be written, or if the
    CPU backend does not compute here; ModelError for a checkpoint that cannot be used.
    """
    checkpoint = read_checkpoint(args)
    if checkpoint.weights == "packed":
        raise ConfigError(f"{checkpoint.path} holds packed weights; pack the original checkpoint")
    if checkpoint.model.is_transformers:
        raise ConfigError(
            f"{checkpoint.path}: transformers computes this model, and packed weights are the CPU "
            "backend's; serve the checkpoint as it is"
        )
    device = choose_device(args.backend, args.num_threads)
    if device.isa is None:
        raise ConfigError(
            "packed weights are the CPU backend's, and here the reference backend computes; "
            "leave --backend and QUIRE_BACKEND out"
        )
    backend = make_backend(device)
    arithmetic = settle_arithmetic(args, checkpoint, backend.capabilities)
    program = run_passes(checkpoint.program, arithmetic.quantization)
    weights = _weights(checkpoint, program)
    with _new_directory(out):
        with phase(logger, f"{checkpoint.name} packed"), replacing(out / PACKED_NAME) as file:
            writer = PackedWriter(file)
            backend.pack(program, weights, arithmetic.dtype, writer)
            weights.check()
            writer.finish(device.isa, arithmetic.dtype, arithmetic.quantization)
        _copy_texts(checkpoint, out)
    weights.close()
    return PackedModel(out, (out / PACKED_NAME).stat().st_size, arithmetic, device.isa)


def _weights(checkpoint: Checkpoint, program: Program) -> WeightStore:
    if checkpoint.weights == "dummy":
        return DummyStore(program)
    store = as_shipped(open_checkpoint(checkpoint.path), checkpoint.model.shipped)
    return bind(program, store, checkpoint.model.names.canonical)


@contextmanager
def _new_directory(out: Path) -> Iterator[None]:
    """A directory that is filled, or empty again: what could not be completed is removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
    except OSError as error:
        raise ConfigError(f"{out} cannot be made: {error.strerror}") from None
    if not is_empty:
        raise ConfigError(f"{out} is not empty; give the name of a new directory")
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for file in out.iterdir():
                file.unlink()
            out.rmdir()
        raise


def _copy_texts(checkpoint: Checkpoint, out: Path) -> None:
    """Configuration and tokenizer; config.json as it was understood, overrides applied, and last:
    without it this is no model directory."""
    for pattern in TEXT_PATTERNS:
        for file in sorted(checkpoint.path.glob(pattern)):
            is_other = file.name == "config.json" or file.name.endswith(".index.json")
            if not is_other and has_file(file):
                text = read_bytes(file, max_bytes=_MAX_TEXT_BYTES)
                with replacing(out / file.name) as copy:
                    copy.write(text)
    write_text(out / "config.json", json.dumps(dict(checkpoint.hf_config), indent=2) + "\n")
