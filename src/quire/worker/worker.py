"""`Worker`: one device's share of the engine. It loads the model and runs plans on it.

Made and called by an executor, in whichever process that chose. Builds everything from the
`EngineConfig`, so that nothing but messages has to reach it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompiledModel
from quire.backends.registry import make_backend
from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted
from quire.log import get_logger, phase
from quire.models import is_transformers, name_map, shipped_format
from quire.planning.compile_plan import compile_plan
from quire.planning.kv.identity import reread_fingerprint
from quire.program import Program, format_program
from quire.protocol import SchedulePlan, StepResult
from quire.system.free_memory import release_free_memory
from quire.units import ceil_div
from quire.weights import PACKED_NAME, PackedFile, WeightStore, bind, open_checkpoint
from quire.weights.dummy import DummyStore
from quire.weights.quantised.store import as_shipped
from quire.worker.input_batch import InputBatch
from quire.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from quire.worker.processors.processing import LogitsProcessing

logger = get_logger(__name__)


class Worker:
    """Owns the compiled model and its KV cache. One thread at a time, but for `read_blocks` and
    `write_blocks`."""

    def __init__(self, config: EngineConfig) -> None:
        """Binds the calling thread, which computes too, where cores are named: helpers inherit
        it."""
        if config.device.cores is not None:
            os.sched_setaffinity(0, config.device.cores)
        self._config = config
        self._has_kv = True
        """Whether the memory of the KV cache is not given back."""
        self._batch = InputBatch(
            config.scheduler.max_num_seqs,
            len(config.cache.layout.groups),
            ceil_div(config.model.max_model_len, config.cache.block_size),
            config.model.vocab_size,
            config.model.logprobs_mode,
        )
        self._processing = _processing(config)
        self._kv_fingerprint = config.cache.fingerprint
        """Of the weights that are loaded."""
        self._load()

    def _load(self) -> None:
        """Loads the model; the rows of the batch stay."""
        config = self._config
        with phase(logger, f"loading {config.model.model}"):
            loaded = _load(config)
        self.model, self._packed = loaded.model, loaded.packed
        keeps_all = config.cache.layout.keeps_all
        self._runner = ModelRunner(
            self.model, self._batch, keeps_all=keeps_all, processing=self._processing
        )

    def execute(self, plan: SchedulePlan) -> StepResult:
        """Runs one step. Raises BackendError if the backend fails, and CheckpointError, whatever
        came of the step, if the weights that it read are not what was loaded."""
        try:
            return self._runner.execute(plan)
        finally:
            if self._packed is not None:
                self._packed.check()

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What this public method returns, or this function, which is given the worker first.

        Raises ConfigError for a name that is none, and for arguments that it does not take.
        """
        if callable(method):
            return method(self, *args, **kwargs)
        found = None if method.startswith("_") else getattr(self, method, None)
        if not callable(found):
            names = [name for name in vars(Worker) if not name.startswith("_")]
            raise ConfigError(
                f"a worker has no method {quoted(method)}; it has {', '.join(sorted(names))}"
            )
        try:
            inspect.signature(found).bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(
                f"{method}{inspect.signature(found)} does not take these arguments: {error}"
            ) from None
        return found(*args, **kwargs)

    def read_blocks(
        self, block_ids: Sequence[int], group: int, num_tokens: int, out: memoryview
    ) -> None:
        """Copies KV blocks of a layer group to memory of their size: of each its first tokens, and
        zeros in place of what others left beside them. Any thread, also while a step computes what
        is behind these tokens. Raises ValueError for another size, BackendError for another
        group."""
        data = np.frombuffer(out, np.uint8).reshape(len(block_ids), -1)
        self.model.read_blocks(np.array(block_ids, np.int32), data)
        for block in data:
            self.model.clear_behind(block, group, num_tokens)

    def write_blocks(self, block_ids: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Puts back what `read_blocks` gave, in these blocks. Any thread, also while a step has
        others. Raises ValueError on a bad shape."""
        self.model.write_blocks(np.array(block_ids, np.int32), data)

    def apply_model(self, function: Callable[[CompiledModel], Any]) -> Any:
        """What a function returns of the compiled model."""
        return function(self.model)

    def get_model_inspection(self) -> str:
        """The program as `quire explain` prints it."""
        return format_program(compile_plan(self._config).program)

    def check_health(self) -> None:
        """Raises CheckpointError if the weights that steps read are not what was loaded."""
        if self._packed is not None:
            self._packed.check()

    def release_memory(self, tags: Sequence[str]) -> None:
        """Gives memory back to the system: `kv_cache`, or with `weights` all of the model. No
        request holds KV blocks, and no step runs before `restore_memory`."""
        self._has_kv = self._has_kv and "kv_cache" not in tags
        if "weights" in tags:
            self.model.close()
            self._packed = None
            release_free_memory()
        elif "kv_cache" in tags:
            self.model.discard_kv()

    def restore_memory(self, tags: Sequence[str]) -> str:
        """Loads the weights again if they were released. The KV cache takes memory as it is
        written. Returns the fingerprint of what it will hold: the weights may be new."""
        if "weights" in tags:
            self._load_again()
        self._has_kv = self._has_kv or "kv_cache" in tags
        return self._kv_fingerprint

    def reload_weights(self) -> None:
        """Loads the weights from disk again. Raises ConfigError while the KV cache holds what the
        old ones gave."""
        if self._has_kv:
            raise ConfigError("reload_weights needs a KV cache that is asleep: call sleep first")
        self.model.close()
        self._load_again()

    def _load_again(self) -> None:
        capabilities = make_backend(self._config.device).capabilities
        self._kv_fingerprint = reread_fingerprint(self._config, capabilities)
        self._load()

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return self.model.progress()

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self.model.close()


def _processing(config: EngineConfig) -> LogitsProcessing | None:
    """None: tokens are chosen within the step. Raises ConfigError if a custom logits processor
    cannot be loaded or made."""
    if not config.model.logits_processors and config.watermark is None:
        return None
    from quire.worker.processors.processing import LogitsProcessing

    return LogitsProcessing(config)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A compiled model, and the file that it goes on reading its weights from, if it does."""

    model: CompiledModel
    packed: PackedFile | None


def _load(config: EngineConfig) -> _Loaded:
    """Raises CheckpointError for weights that do not fit the model, BackendError otherwise."""
    plan = compile_plan(config)
    backend = make_backend(config.device)
    logger.info("%s: %s", config.device.backend, backend.capabilities.description)
    with closing(_weights(config, plan.program)) as weights:
        model = backend.compile(plan.program, weights, plan.kv, plan.options)
        weights.check()
        return _Loaded(model, weights if isinstance(weights, PackedFile) else None)


def _weights(config: EngineConfig, program: Program) -> WeightStore | PackedFile:
    model = config.model
    if model.weights == "packed":
        return PackedFile(model.path / PACKED_NAME)
    if model.weights == "dummy":
        return DummyStore(program)
    if is_transformers(model.hf_config):  # which maps the names of a checkpoint itself
        return open_checkpoint(model.path)
    names = name_map(model.hf_config)
    store = as_shipped(open_checkpoint(model.path), shipped_format(model.hf_config))
    if (left_out := names.summary(store.names())) is not None:
        logger.info("%s", left_out)
    return bind(program, store, names.canonical)
