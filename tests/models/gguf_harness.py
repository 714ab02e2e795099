"""GGUF files beside the checkpoints of transformers that they were made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_cases import Case, logits_of_checkpoint, prompt_of, write_checkpoint
from model_harness import Runner, load
from safetensors.torch import load_file, save_file

from quire.backends.base import Backend
from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.models import build_program, name_map
from quire.weights import bind, open_checkpoint

TOKENS = 44


def as_numbers(name: str) -> str:  # noqa: ARG001
    """All matrices in float32."""
    return "F32"


@dataclass
class Model:
    """A GGUF file, and a checkpoint of transformers with the numbers that it holds."""

    case: Case
    file: Path
    checkpoint: Path
    written: Any
    """The `ModelFile` that wrote it."""


def model_file(kind: Callable[..., Any], case: Case, directory: Path) -> Any:
    """A `ModelFile` of a random checkpoint, which it writes."""
    write_checkpoint(case, directory)
    tensors = {
        name: tensor.float().numpy()
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    config = json.loads((directory / "config.json").read_text())
    return kind(case.name, config, tensors)


def gguf_model(
    kind: Callable[..., Any],
    case: Case,
    tmp_path: Path,
    type_of: Callable[[str], str],
    **written: Any,
) -> Model:
    """The file, and the checkpoint with what is left of its numbers in it."""
    checkpoint = tmp_path / "checkpoint"
    writer = model_file(kind, case, checkpoint)
    file = writer.write(tmp_path / "m.gguf", type_of, **written)
    save_file(
        {name: torch.from_numpy(array) for name, array in writer.held.items()},
        checkpoint / "model.safetensors",
        metadata={"format": "pt"},
    )
    return Model(case, file, checkpoint, writer)


def compare(model: Model, backend: Backend, bound: float, share: float = 1.0) -> None:
    """Logits beside transformers': of `share` of the rows, as rounded activations may choose
    another expert where two are nearly equal. One by one the bits are the same; numbers that
    are held as they are need not be tried again."""
    prompt = prompt_of(model.case, TOKENS)
    truth = logits_of_checkpoint(model.checkpoint, prompt, torch.float32)
    runner = Runner(load(resolve_model(str(model.file)), backend))
    [found] = runner.step([(runner.request(prompt), TOKENS)])
    errors = np.abs(found - truth).max(axis=1) / np.abs(truth).max()
    assert np.quantile(errors, share) < bound
    if share == 1.0:
        return
    one_by_one = runner.request(prompt)
    alone = [runner.step([(one_by_one, 1)])[0][0] for _ in prompt]
    np.testing.assert_array_equal(np.stack(alone), found)


def no_parts(name: str, _config: dict[str, Any], _get: Callable[[str], Any]) -> Any:
    """For files whose tensors are those of the checkpoint."""
    raise AssertionError(f"{name} is not in the checkpoint")


def check_numbers(
    model: Model, part: Callable[[str, dict[str, Any], Callable[[str], Any]], Any] = no_parts
) -> None:
    """Every tensor of the program is what gguf-py says that the file holds: beside the same tensors
    of the checkpoint, through the family's own names. `part`: finds the numbers of a tensor that
    the checkpoint has within another one, given its name, the configuration and a way to get the
    checkpoint's numbers."""
    directory = resolve_model(str(model.file))
    config = read_config(directory)
    program = build_program(config)
    store = bind(program, open_checkpoint(directory), name_map(config).canonical)
    own = read_config(model.checkpoint)
    wanted = bind(build_program(own), open_checkpoint(model.checkpoint), name_map(own).canonical)
    known, seen = set(wanted.names()), set[str]()

    def numbers(name: str) -> Any:
        seen.add(name)
        return wanted.get(name).to_float32()

    for name in store.names():
        found = store.get(name).to_float32()
        expected = numbers(name) if name in known else part(name, own, numbers)
        if found.shape != expected.shape:  # Llama 4's experts, which GGUF files do not transpose
            expected = expected.swapaxes(-1, -2)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    assert seen == known


def check_binding(file: Path) -> None:
    """Raises ModelError where tensors and configuration do not fit."""
    directory = resolve_model(str(file))
    config = read_config(directory)
    bind(build_program(config), open_checkpoint(directory), name_map(config).canonical)
