"""`Worker`: one device's share of the engine. It loads the model and runs plans on it.

Made and called by an executor, in whichever process that chose. Builds everything from the
`EngineConfig`, so that nothing but messages has to reach it.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompiledModel, StepBatch, StepOutput
from quire.backends.registry import make_backend
from quire.config.ranks import ONE_RANK, Rank
from quire.config.records import EngineConfig, ModelConfig
from quire.errors import ConfigError, quoted
from quire.log import get_logger, phase
from quire.planning.compile_plan import compile_plan
from quire.planning.kv.identity import reread_fingerprint
from quire.program import Program
from quire.program.printer import format_program
from quire.ranks import RankGroup
from quire.system.free_memory import release_free_memory
from quire.weights import PackedFile
from quire.worker.handles import ABSENT_OF_WORKER, ModelHandle, RunnerHandle, refuse
from quire.worker.model_weights import ModelWeights

logger = get_logger(__name__)


class Worker:
    """Owns the compiled model and its KV cache. One thread at a time, but for `read_blocks` and
    `write_blocks`."""

    def __init__(
        self, config: EngineConfig, rank: Rank = ONE_RANK, group: RankGroup | None = None
    ) -> None:
        """Binds the calling thread, which computes too, where cores are named: helpers inherit
        it. `group`: the other ranks, if there are any."""
        if config.device.cores is not None:
            os.sched_setaffinity(0, config.device.cores)
        self._config = config
        self.rank = rank
        self._group = group
        self._kv_fingerprint = config.cache.fingerprint
        """Of the weights that are loaded."""
        self._weights = ModelWeights(config)
        self._load()

    def _load(self) -> None:
        """Loads the model; the rows of the batch stay."""
        config = self._config
        with phase(logger, f"loading {config.model.model}"):
            loaded = _load(config, self._weights, self.rank, self._group)
        self._weights.note_loaded()
        self.model, self._packed, self._program = loaded.model, loaded.packed, loaded.program
        self._block_bytes = loaded.block_bytes

    def step(self, batch: StepBatch) -> StepOutput:
        """Runs one step. Raises BackendError if the backend fails, and CheckpointError, whatever
        came of the step, if the weights that it read are not what was loaded."""
        try:
            return self.model.step(batch)
        finally:
            self.check_health()

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What this public method returns, or this function, which is given the worker first.

        Raises ConfigError for a name that is none, and for arguments that it does not take.
        """
        if callable(method):
            return method(self, *args, **kwargs)
        found = None if method.startswith("_") else getattr(self, method, None)
        if not callable(found):
            own = vars(Worker).items()
            names = [name for name, one in own if callable(one) and not name.startswith("_")]
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
        own = self._own_part(data)
        self.model.read_blocks(np.array(block_ids, np.int32), own)
        for block in own:
            self.model.clear_behind(block, group, num_tokens)
        if own is not data:
            data[:, : own.shape[1]] = own
            data[:, own.shape[1] :] = 0

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Copies what `read_blocks` gave into these blocks. Any thread, also while a step uses
        other blocks. Raises ValueError for a wrong size."""
        blocks = np.frombuffer(data, np.uint8).reshape(len(block_ids), -1)
        own = self._own_part(blocks)
        if own is not blocks:
            own[:] = blocks[:, : own.shape[1]]
        self.model.write_blocks(np.array(block_ids, np.int32), own)

    def _own_part(self, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The blocks, or room for them where another rank has more heads and so larger blocks."""
        if self.rank.world_size == 1 or blocks.shape[1] <= self._block_bytes:
            return blocks
        return np.empty((len(blocks), self._block_bytes), np.uint8)

    @property
    def vllm_config(self) -> EngineConfig:
        """The whole configuration."""
        return self._config

    @property
    def model_config(self) -> ModelConfig:
        """What is being served."""
        return self._config.model

    @property
    def device(self) -> Any:
        """The CPU: a device of torch in a process that has imported it, otherwise "cpu"."""
        return sys.modules["torch"].device("cpu") if "torch" in sys.modules else "cpu"

    @property
    def model_runner(self) -> RunnerHandle:
        """For extensions: `model_runner.model.load_weights`."""
        update = partial(self._weights.update, self._program)
        return RunnerHandle(ModelHandle(self.model, update), self._config, self.device)

    def __getattr__(self, name: str) -> NoReturn:
        refuse("the worker", name, ABSENT_OF_WORKER)

    def get_model(self) -> ModelHandle:
        """The loaded model."""
        return self.model_runner.model

    def apply_model(self, function: Callable[[ModelHandle], Any]) -> Any:
        """What a function returns of the loaded model."""
        return function(self.get_model())

    def get_model_inspection(self) -> str:
        """The program as `quire explain` prints it."""
        return format_program(compile_plan(self._config, self.rank).program)

    def check_health(self) -> None:
        """Raises CheckpointError if the weights that steps read are not what was loaded."""
        if self._packed is not None:
            self._packed.check()

    def release_memory(self, tags: Sequence[str]) -> None:
        """Gives memory back to the system: `kv_cache`, or with `weights` all of the model. No
        request holds KV blocks, and no step runs before `restore_memory`."""
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
        return self._kv_fingerprint

    def reload_weights(
        self,
        weights_iterator: Iterable[tuple[str, Any]] | None = None,
        weights_path: str | Path | None = None,
        is_checkpoint_format: bool = True,
    ) -> None:
        """Steps from the next one on use other weights: those of the folder `weights_path`, or
        those in its files now; then, in place of some of them, those of `weights_iterator`.

        Requests that are running compute their tokens again. Raises ConfigError, or CheckpointError
        for weights that do not fit the model; the old ones stay then.
        """
        if is_checkpoint_format is not True:
            raise ConfigError("is_checkpoint_format must be True: give weights as a checkpoint has")
        self._weights.use_files(self._program, weights_path)
        if weights_iterator is not None:
            try:
                self._weights.update(self._program, weights_iterator)
            except BaseException:
                self._weights.undo()
                raise

    @property
    def has_new_weights(self) -> bool:
        """Whether weights were given that `take_new_weights` is to load."""
        return self._weights.is_new

    def take_new_weights(self) -> str:
        """Loads the weights that were given, with an empty KV cache; their fingerprint. No request
        holds KV blocks. If that fails, the old ones are loaded again, and the error is raised."""
        self.model.close()
        try:
            self._load_again()
        except BaseException:
            self._weights.undo()
            self._load_again()
            raise
        return self._kv_fingerprint

    def _load_again(self) -> None:
        capabilities = make_backend(self._config.device).capabilities
        of_files = reread_fingerprint(self._weights.config, capabilities)
        self._kv_fingerprint = self._weights.fingerprint(of_files)
        self._load()

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return self.model.progress()

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self.model.close()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A compiled model, and the file that it goes on reading its weights from, if it does."""

    model: CompiledModel
    packed: PackedFile | None
    program: Program
    """Of the whole model."""
    block_bytes: int
    """Of a KV block of this rank."""


def _load(
    config: EngineConfig, source: ModelWeights, rank: Rank, group: RankGroup | None
) -> _Loaded:
    """Raises CheckpointError for weights that do not fit the model, BackendError otherwise."""
    whole = compile_plan(config)
    plan = whole.of_rank(rank)
    backend = make_backend(config.device)
    logger.info("%s: %s", config.device.backend, backend.capabilities.description)
    # The weights are checked against the whole model; the backend reads what this rank needs.
    with closing(source.open(whole.program)) as weights:
        model = backend.compile(plan.program, weights, plan.kv, plan.options, group)
        weights.check()
        packed = weights if isinstance(weights, PackedFile) else None
        block_bytes = backend.kv_block_bytes(plan.program, plan.kv)
        return _Loaded(model, packed, whole.program, block_bytes)
