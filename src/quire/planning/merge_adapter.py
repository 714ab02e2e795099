"""Creates a checkpoint with an adapter in its weights, for `quire merge`.

It reads one weight at a time, so that it can merge a model larger than the memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.files import replacing
from quire.planning.checkpoint import read_checkpoint
from quire.planning.quantize import copy_texts, new_directory
from quire.program.passes import run_passes
from quire.weights import bind, open_checkpoint
from quire.weights.adapters.config import MAX_RANK
from quire.weights.adapters.merge import MergedTensors
from quire.weights.adapters.slots import adapter_bytes
from quire.weights.adapters.tasks import read_adapter_or_task

_NAME = "model.safetensors"
_ALIGNMENT = 8


def merge_adapter(args: EngineArgs, adapter: Path, out: Path) -> int:
    """Writes the model of `args` with an adapter in its weights into the new directory `out`.
    Returns the bytes of the weights.

    Raises ConfigError if `out` is not empty or cannot be written; ModelError for a checkpoint or an
    adapter that cannot be used.
    """
    checkpoint = read_checkpoint(args)
    path, model = checkpoint.path, checkpoint.model
    if checkpoint.weights != "checkpoint" or model.shipped is not None or checkpoint.is_gguf:
        raise ConfigError(f"{path}: an adapter is merged into an unquantised checkpoint only")
    if model.is_transformers:
        raise ConfigError(f"{path}: a model that transformers computes takes no adapters")
    program, canonical = run_passes(model.program, None), model.names.canonical
    most = 2 * adapter_bytes(program, MAX_RANK, "float32")
    files = read_adapter_or_task(adapter, max_rank=MAX_RANK, max_bytes=most)
    merged = MergedTensors(
        files,
        program,
        canonical,
        lambda: open_checkpoint(path),
        lambda: bind(program, open_checkpoint(path), canonical),
    )
    with new_directory(out):
        with replacing(out / _NAME) as file:
            num_bytes = _write(file, merged)
        copy_texts(checkpoint, out)
    return num_bytes


def _write(file: BinaryIO, tensors: MergedTensors) -> int:
    """Writes a safetensors file. Returns the bytes of the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape, num_bytes in tensors.shapes():
        offsets = [end, end + num_bytes]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        end += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors:
        file.write(tensor.data.tobytes())
    return end
