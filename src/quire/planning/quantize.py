"""Creates a model directory with packed weights, for `quire quantize`.

It reads one weight at a time, so that it can pack a model larger than the memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quire.backends.registry import choose_device, make_backend
from quire.config.checkpoint.model_files import has_file, read_bytes
from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.download import TEXT_PATTERNS
from quire.config.records import Arithmetic
from quire.errors import ConfigError
from quire.files import replacing, write_text
from quire.log import get_logger, phase
from quire.planning.calibration import calibrated
from quire.planning.checkpoint import Checkpoint, read_checkpoint
from quire.planning.choices import settle_arithmetic
from quire.program import Program
from quire.program.passes import run_passes
from quire.units import MiB
from quire.weights import PACKED_NAME, Calibration, PackedWriter, WeightStore, bind, open_checkpoint
from quire.weights.dummy import DummyStore
from quire.weights.quantised.store import as_shipped

logger = get_logger(__name__)

_MAX_TEXT_BYTES = 256 * MiB


@dataclass(frozen=True, slots=True)
class PackedModel:
    """Result of `quantize_model`."""

    path: Path
    num_bytes: int
    arithmetic: Arithmetic
    isa: str
    calibration: Calibration | None


def quantize_model(args: EngineArgs, out: Path, calibrate: Path | None = None) -> PackedModel:
    """Pack the model of `args` into the new directory `out`. `calibrate`: a text or an imatrix that
    gives the factors of columns.

    Raises ConfigError if `out` is not empty or cannot be written, or if the CPU backend is not
    used; ModelError for a checkpoint that cannot be used.
    """
    checkpoint = read_checkpoint(args)
    if checkpoint.weights == "packed":
        raise ConfigError(f"{checkpoint.path} has packed weights; pack the original checkpoint")
    if checkpoint.model.is_transformers:
        raise ConfigError(
            f"{checkpoint.path}: this model runs on transformers, but packed weights need the CPU "
            "backend; serve the checkpoint as it is"
        )
    device = choose_device(args.backend, args.num_threads, device=args.device)
    if device.isa is None:
        raise ConfigError(
            f"packed weights need the CPU backend, but the {device.backend} backend is selected; "
            "leave --backend and QUIRE_BACKEND out"
        )
    backend = make_backend(device)
    arithmetic = settle_arithmetic(args, checkpoint, backend.capabilities)
    program = run_passes(checkpoint.model.program, arithmetic.quantization)
    weights = _weights(checkpoint, program)
    calibration = None
    with new_directory(out):
        if calibrate is not None:
            _check_calibrated(checkpoint, arithmetic)
            weights, calibration = calibrated(
                calibrate, checkpoint, backend, arithmetic, program, weights
            )
        with phase(logger, f"{checkpoint.name} packed"), replacing(out / PACKED_NAME) as file:
            writer = PackedWriter(file)
            backend.pack(program, weights, arithmetic.dtype, writer)
            weights.check()
            writer.finish(device.isa, arithmetic.dtype, arithmetic.quantization, calibration)
        copy_texts(checkpoint, out)
    weights.close()
    size = (out / PACKED_NAME).stat().st_size
    return PackedModel(out, size, arithmetic, device.isa, calibration)


def _check_calibrated(checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
    if arithmetic.quantization is None:
        raise ConfigError("--calibrate needs a format to round to: give --quantization int4, too")
    if checkpoint.weights == "dummy":
        raise ConfigError("--calibrate: random weights (load_format=dummy) cannot be calibrated")


def _weights(checkpoint: Checkpoint, program: Program) -> WeightStore:
    if checkpoint.weights == "dummy":
        return DummyStore(program)
    store = as_shipped(open_checkpoint(checkpoint.path), checkpoint.model.shipped)
    return bind(program, store, checkpoint.model.names.canonical)


@contextmanager
def new_directory(out: Path) -> Iterator[None]:
    """Create a directory for the body to fill. If the body fails, the directory is removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
    except OSError as error:
        raise ConfigError(f"{out} cannot be created: {error.strerror}") from None
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


def copy_texts(checkpoint: Checkpoint, out: Path) -> None:
    """Copy the configuration and the tokenizer. config.json is written last, with overrides
    applied: without it the directory is not a valid model."""
    for pattern in TEXT_PATTERNS:
        for file in sorted(checkpoint.path.glob(pattern)):
            is_other = file.name == "config.json" or file.name.endswith(".index.json")
            if not is_other and has_file(file):
                text = read_bytes(file, max_bytes=_MAX_TEXT_BYTES)
                with replacing(out / file.name) as copy:
                    copy.write(text)
    write_text(out / "config.json", json.dumps(dict(checkpoint.model.hf_config), indent=2) + "\n")
