"""`ModelWeights`: the weights that a worker has loaded, and new weights that replace them.

Owned by `Worker`. New weights come from another folder or from memory (a trainer's tensors). They
are checked when they are given, and loaded by the next step, so that hundreds of single tensors
need only one load. Knows no requests.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted
from quire.images.modality import MODALITIES
from quire.log import get_logger
from quire.models.description import ModelDescription
from quire.models.pooling.head import pooling_head
from quire.program import Program
from quire.suggest import did_you_mean
from quire.weights import (
    PACKED_NAME,
    BoundStore,
    HostTensor,
    PackedFile,
    TensorDtype,
    WeightStore,
    bind,
    open_checkpoint,
    open_with_folders,
)
from quire.weights.dummy import DummyStore
from quire.weights.quantised.store import as_shipped

logger = get_logger(__name__)

_DTYPES: dict[str, TensorDtype] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class _Origin:
    """Source of weights."""

    config: EngineConfig
    """Configuration with the folder of the weights."""
    given: Mapping[str, HostTensor] = field(default_factory=dict)
    """Tensors in memory that replace those of the folder, by the program's names."""


class ModelWeights:
    """The origins of the loaded weights and of the weights to load next."""

    def __init__(self, config: EngineConfig) -> None:
        self._loaded = self._wanted = _Origin(config)
        self.is_new = False
        """Whether weights other than the loaded ones are to be loaded."""

    def open(self, program: Program) -> WeightStore | PackedFile:
        """Opens the weights to load. Raises CheckpointError if they do not fit the program."""
        return _opened(self._wanted, program)

    @property
    def config(self) -> EngineConfig:
        """The configuration, with the folder of the weights to load."""
        return self._wanted.config

    def fingerprint(self, of_files: str) -> str:
        """Fingerprint of the weights to load. `of_files`: fingerprint of their folder. Equal
        weights have equal fingerprints."""
        if not self._wanted.given:
            return of_files
        state = hashlib.sha256(of_files.encode())
        for name, tensor in sorted(self._wanted.given.items()):
            state.update(f"\n{name} {tensor.dtype} {tensor.shape} ".encode())
            state.update(hashlib.sha256(tensor.data.data).digest())
        return state.hexdigest()

    def note_loaded(self) -> None:
        """Records that the weights to load were loaded."""
        self._loaded, self.is_new = self._wanted, False

    def undo(self) -> None:
        """Drops the new weights; the loaded ones stay in use."""
        self._wanted, self.is_new = self._loaded, False

    def use_files(self, program: Program, weights_path: str | Path | None) -> None:
        """Selects the files of a folder to load; None: the current folder. Drops tensors in memory.
        Raises ConfigError if the folder does not exist, CheckpointError if its files do not fit
        the program."""
        config = self._wanted.config
        if weights_path is not None:
            config = _with_folder(config, weights_path)
        origin = _Origin(config)
        with closing(_opened(origin, program)):
            self._wanted, self.is_new = origin, True

    def update(self, program: Program, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Replaces tensors by their names in the checkpoint. Returns the names that the model uses.

        All are checked before any is used. Raises ConfigError.
        """
        config = self._wanted.config
        names = ModelDescription(config.model.hf_config).names
        shapes = _replaceable(config, program)
        given: dict[str, HostTensor] = {}
        used = set[str]()
        for name, value in weights:
            canonical = names.canonical(name)
            if canonical is None:
                continue  # a tied head or a buffer, which the model does not need
            if canonical not in shapes:
                hint = did_you_mean(canonical, tuple(shapes))
                raise ConfigError(f"load_weights: the model has no weight {quoted(name)}{hint}")
            given[canonical] = _host_tensor(canonical, value, shapes[canonical])
            used.add(name)
        if given:
            self.is_new = True
            self._wanted = replace(self._wanted, given={**self._wanted.given, **given})
        return used


def _opened(origin: _Origin, program: Program) -> WeightStore | PackedFile:
    model = origin.config.model
    if model.weights == "packed":
        return PackedFile(model.path / PACKED_NAME)
    if model.weights == "dummy":
        dummy = DummyStore(program)
        if not origin.given:
            return dummy
        return BoundStore(dummy, {name: name for name in dummy.names()}, origin.given)
    description = ModelDescription(model.hf_config)
    if description.is_transformers:  # transformers maps the names of a checkpoint
        return open_checkpoint(model.path)
    names = description.names
    head = pooling_head(model.hf_config)
    folders = () if head is None else [layer.folder for layer in head.dense]
    store = as_shipped(open_with_folders(model.path, folders), description.shipped)
    encoded = next((one for one in MODALITIES.values() if model.takes(one.name)), None)
    left_out = names.summary(store.names(), encoded)
    if left_out is not None:
        logger.info("%s", left_out)
    return bind(program, store, names.canonical, origin.given)


def _with_folder(config: EngineConfig, weights_path: object) -> EngineConfig:
    """The configuration with the weights of another folder."""
    if not isinstance(weights_path, str | Path) or not Path(weights_path).is_dir():
        raise ConfigError(
            f"weights_path must be a folder with the weights of a model, got {quoted(weights_path)}"
        )
    model = replace(config.model, path=Path(weights_path))
    if model.weights == "dummy":
        model = replace(model, weights="checkpoint")
    return replace(config, model=model)


def _replaceable(config: EngineConfig, program: Program) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that may be replaced. Raises ConfigError if none may be."""
    model, why = config.model, None
    description = ModelDescription(model.hf_config)
    if model.weights == "packed":
        why = "the weights are packed (quire quantize)"
    elif description.is_transformers:
        why = "transformers computes the model (model_impl)"
    elif description.shipped is not None:
        why = "the checkpoint is quantised"
    if why is not None:
        raise ConfigError(
            f"load_weights can only replace tensors of an unquantised checkpoint, but {why}. Write "
            "the new weights to a folder and call collective_rpc('reload_weights', "
            "kwargs={'weights_path': folder})"
        )
    return {part.name: part.shape for param in program.params() for part in param.parts}


def _host_tensor(name: str, value: Any, shape: tuple[int, ...]) -> HostTensor:
    """A copy of an array or a torch tensor. Raises ConfigError."""
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ConfigError(
            f"load_weights: {name} must be an array or tensor of float32, float16 or bfloat16, "
            f"got {dtype}"
        )
    if tuple(value.shape) != shape:
        raise ConfigError(
            f"load_weights: {name} must have shape {list(shape)}, got {list(value.shape)}"
        )
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        if dtype == "bfloat16":
            value = value.view(sys.modules["torch"].int16)
        value = value.numpy()
    data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    return HostTensor(name, _DTYPES[dtype], shape, data, file="load_weights")
