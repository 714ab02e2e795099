"""`LoadedModel`: the model of a worker, with its encoder. It is loaded, gives its memory back, and
gets new weights.

The base of `Worker`, which runs steps on it. Also what vLLM's extensions of workers use of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from quire.backends.base import Backend, CompiledModel
from quire.backends.registry import make_backend
from quire.config.ranks import ONE_RANK, Rank
from quire.config.records import EngineConfig, ModelConfig
from quire.errors import BackendError, ConfigError
from quire.log import get_logger, phase
from quire.planning.compile_plan import compile_plan
from quire.planning.kv.identity import reread_fingerprint
from quire.program import Program
from quire.program.printer import format_program
from quire.ranks import RankGroup
from quire.system.free_memory import release_free_memory
from quire.weights import PackedFile
from quire.worker.adapter_loading import WorkerAdapters
from quire.worker.handles import ABSENT_OF_WORKER, ModelHandle, RunnerHandle, refuse
from quire.worker.image_encoder import TileEncoding, load_encoder
from quire.worker.model_weights import ModelWeights
from quire.worker.rank_kv import kv_runs

logger = get_logger(__name__)


class LoadedModel:
    """Owns a compiled model with its weights, and its encoder, if it has one."""

    def __init__(
        self, config: EngineConfig, rank: Rank = ONE_RANK, group: RankGroup | None = None
    ) -> None:
        """Binds the calling thread to `device.cores`, if set; compute threads inherit that.
        `group`: the other ranks, if there are any."""
        if config.device.cores is not None:
            os.sched_setaffinity(0, config.device.cores)
        self._config = config
        self._weights = ModelWeights(config)
        self.adapters = WorkerAdapters(config, self._weights)
        self.rank = rank
        self._is_alone = rank.world_size == 1
        self._groups = _groups(config, group)
        self._kv_fingerprint = config.cache.fingerprint
        """Fingerprint of the loaded weights."""
        self._load()

    def _load(self) -> None:
        """Loads the model; the rows of the batch stay."""
        config = self._config
        with phase(logger, f"loading {config.model.model}"):
            loaded = _load(config, self._weights, self.rank, self._groups)
        self._weights.note_loaded()
        self.model, self._packed = loaded.model, loaded.packed
        self._program, self._own_program = loaded.program, loaded.own_program
        if not self._is_alone:
            self._kv_runs = kv_runs(self._program, self.rank)
        self._block_bytes = loaded.block_bytes
        self._encoder = load_encoder(config, loaded.backend, self.rank)
        self._tile: TileEncoding | None = None
        release_free_memory()  # tensors that were converted while the weights were packed

    def load_adapter(self, path: str, name: str) -> dict[str, Any]:
        """Loads the adapter in a folder: `digest`, `num_bytes` and `rank`. Any thread, also while a
        step computes. Raises CheckpointError, ConfigError or BackendError."""
        with phase(logger, f"loading the adapter {name}"):
            return self.adapters.load(self.model, self._program, self._own_program, path)

    def drop_adapter(self, digest: str) -> None:
        """Drops an adapter, except for the requests that the worker has."""
        self.adapters.drop(digest)

    def begin_tile(self, pixels: bytes, height: int, width: int) -> None:
        """Begins to encode a tile of RGB bytes, of one frame or several, or of a spectrum; the tile
        before it is dropped. Raises BackendError."""
        if self._encoder is None:
            raise BackendError("the model of this worker has no encoder")
        self._tile = None
        self._tile = self._encoder.begin(self._encoder.vision.tile(pixels, (height, width)))

    def encode_tile(self, seconds: float) -> bytes | None:
        """Encodes the tile for about `seconds`. Returns the rows of the text model, float32, when
        they are done, None before. Raises BackendError."""
        if self._tile is None:
            raise BackendError("no tile is being encoded")
        try:
            rows = self._tile.advance(seconds)
        except BaseException:
            self._tile = None
            raise
        if rows is None:
            return None
        self._tile = None
        return rows.astype("<f4").tobytes()

    @property
    def vllm_config(self) -> EngineConfig:
        """The whole configuration."""
        return self._config

    @property
    def model_config(self) -> ModelConfig:
        """Configuration of the served model."""
        return self._config.model

    @property
    def device(self) -> Any:
        """The CPU: a torch device if this process has imported torch, otherwise "cpu"."""
        return sys.modules["torch"].device("cpu") if "torch" in sys.modules else "cpu"

    @property
    def model_runner(self) -> RunnerHandle:
        """For extensions: `model_runner.model.load_weights`."""
        return RunnerHandle(
            ModelHandle(self.model, self._update_weights), self._config, self.device
        )

    def __getattr__(self, name: str) -> NoReturn:
        refuse("the worker", name, ABSENT_OF_WORKER)

    def get_model(self) -> ModelHandle:
        """The loaded model."""
        return self.model_runner.model

    def apply_model(self, function: Callable[[ModelHandle], Any]) -> Any:
        """Calls a function with the loaded model."""
        return function(self.get_model())

    def get_model_inspection(self) -> str:
        """The program as `quire explain` prints it."""
        return format_program(compile_plan(self._config, self.rank).program)

    def release_memory(self, tags: Sequence[str]) -> None:
        """Releases memory to the system: `kv_cache`, or with `weights` all memory of the model. No
        request may hold KV blocks, and no step may run before `restore_memory`."""
        if "weights" in tags:
            self._close_model()
            self._packed = None
            release_free_memory()
        elif "kv_cache" in tags:
            self.model.discard_kv()

    def restore_memory(self, tags: Sequence[str]) -> str:
        """Loads the weights again if they were released. The KV cache takes memory when it is
        written to. Returns the fingerprint of its future contents: the weights may be new."""
        if "weights" in tags:
            self._load_again()
        return self._kv_fingerprint

    def reload_weights(
        self,
        weights_iterator: Iterable[tuple[str, Any]] | None = None,
        weights_path: str | Path | None = None,
        is_checkpoint_format: bool = True,
    ) -> None:
        """Replaces the weights from the next step on, by those in the folder `weights_path`, or in
        the current folder; then replaces some of them by those of `weights_iterator`.

        Running requests compute their tokens again. Raises ConfigError, or CheckpointError for
        weights that do not fit the model; the old weights stay in use then.
        """
        if is_checkpoint_format is not True:
            raise ConfigError("is_checkpoint_format must be True: give weights as in a checkpoint")
        with self.adapters.lock:
            self._check_replaceable()
            self._weights.use_files(self._program, weights_path)
            if weights_iterator is not None:
                try:
                    self._weights.update(self._program, weights_iterator)
                except BaseException:
                    self._weights.undo()
                    raise

    def _update_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Update weights by `ModelWeights.update`. Raises ConfigError as `reload_weights` does."""
        with self.adapters.lock:
            self._check_replaceable()
            return self._weights.update(self._program, weights)

    def _check_replaceable(self) -> None:
        if self.adapters.depends_on_weights:
            raise ConfigError(
                "the weights cannot be replaced while an adapter with use_dora is loaded; remove it"
            )

    def take_new_weights(self) -> str:
        """Loads the new weights, with an empty KV cache. Returns their fingerprint. No request may
        hold KV blocks. If loading fails, loads the old weights again and raises the error."""
        self._close_model()
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

    def _close_model(self) -> None:
        with self.adapters.lock:
            self.model.close()
        self._tile = None
        if self._encoder is not None:
            self._encoder.close()

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self._close_model()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A compiled model, and the file from which it keeps reading its weights, if any."""

    model: CompiledModel
    packed: PackedFile | None
    program: Program
    """The program of the whole model."""
    own_program: Program
    """The part of the program that this rank computes."""
    block_bytes: int
    """Bytes of a KV block of this rank."""
    backend: Backend
    """Backend that compiled the model; of the only rank, it compiles the image encoder too."""


def _groups(config: EngineConfig, group: RankGroup | None) -> tuple[RankGroup, ...]:
    """The other ranks: while they compute the model, and then while they compute the draft model.
    Empty: there are none."""
    if group is None:
        return ()
    return (group,) if config.draft is None else (group, group.of_draft())


def _load(
    config: EngineConfig, source: ModelWeights, rank: Rank, groups: tuple[RankGroup, ...]
) -> _Loaded:
    """Compiles the part of a rank. Raises CheckpointError for weights that do not fit the model, or
    BackendError."""
    whole = compile_plan(config)
    plan = whole.of_rank(rank)
    backend = make_backend(config.device)
    logger.info("%s: %s", config.device.backend, backend.capabilities.description)
    group = groups[0] if groups else None
    # The weights are checked against the whole model; the backend reads what this rank needs.
    with closing(source.open(whole.program)) as weights:
        model = backend.compile(plan.program, weights, plan.kv, plan.options, group)
        weights.check()
        packed = weights if isinstance(weights, PackedFile) else None
    block_bytes = backend.kv_block_bytes(plan.program, plan.kv)
    if config.draft is not None and plan.draft is not None:
        from quire.worker.draft.loading import load_pair

        draft_group = groups[1] if groups else None
        model = load_pair(source.config, whole, rank, backend, draft_group, model)
        block_bytes += backend.kv_block_bytes(plan.draft.program, plan.draft.kv)
    return _Loaded(model, packed, whole.program, plan.program, block_bytes, backend)
