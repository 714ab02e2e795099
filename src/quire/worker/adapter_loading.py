"""`WorkerAdapters`: the adapters that a worker has loaded, by the digest of their contents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.adapters.config import LoRAConfig
from quire.backends.base import CompiledModel
from quire.backends.records import LoadedAdapter, NamedAdapter, StepBatch, loaded_adapter
from quire.config.records import EngineConfig
from quire.errors import CheckpointError, ConfigError
from quire.log import get_logger
from quire.models.description import ModelDescription
from quire.program import Program
from quire.weights import PackedFile, WeightStore
from quire.weights.adapters import adapter_of_rank, bind_adapter
from quire.weights.adapters.config import CONFIG_NAME
from quire.weights.adapters.read import AdapterFiles
from quire.weights.adapters.tasks import read_adapter_or_task

if TYPE_CHECKING:
    from quire.worker.model_weights import ModelWeights

logger = get_logger(__name__)

_HEADER_BYTES = 1 << 20


class WorkerAdapters:
    """Loaded on any thread; used by the worker's thread."""

    def __init__(self, config: EngineConfig, weights: ModelWeights) -> None:
        self._config = config
        self._weights = weights
        self._loaded: dict[str, LoadedAdapter] = {}
        self._of_base: set[str] = set()
        """Digests of adapters that were computed from the weights of the model."""
        self._num_reading_base = 0
        """Number of adapters that are being computed from the weights of the model."""
        self.lock = threading.Lock()
        """Held while the model is used to load an adapter, and while it or its weights are
        replaced."""

    @property
    def depends_on_weights(self) -> bool:
        """Whether an adapter was or is being computed from the weights of the model."""
        return bool(self._of_base) or self._num_reading_base > 0

    def load(
        self, model: CompiledModel, program: Program, own: Program, path: str
    ) -> dict[str, Any]:
        """Loads the adapter in a folder; its digest is that of the whole adapter. `own`: the part
        of the program that this rank computes. Any thread. Raises CheckpointError, and BackendError
        if the model cannot take it."""
        limits = self._limits()
        # What a file holds may be twice as long as what is kept of it.
        most = 2 * limits.adapter_bytes + _HEADER_BYTES
        files = self._read(Path(path), limits.max_lora_rank, most)
        names = ModelDescription(self._config.model.hf_config).names
        with self._reading_base(files) as is_of_base:
            weights = bind_adapter(
                files, program, names.canonical, lambda: self._open_base(program)
            )
            digest = weights.digest()
            with self.lock:
                loaded = self._loaded.get(digest)
                if loaded is None:
                    loaded = model.load_adapter(adapter_of_rank(weights, own), limits.lora_dtype)
                    self._loaded[digest] = loaded
            if is_of_base:
                self._of_base.add(digest)
        return {
            "digest": digest,
            "num_bytes": loaded.num_bytes,
            "description": f"rank {weights.rank}",
        }

    @contextmanager
    def _reading_base(self, files: AdapterFiles) -> Iterator[bool]:
        """Whether an adapter is computed from the weights of the model, which are not replaced
        then."""
        is_of_base = files.config.has_magnitudes or any(one.is_saved for one in files.modules)
        with self.lock:
            self._num_reading_base += is_of_base
        try:
            yield is_of_base
        finally:
            with self.lock:
                self._num_reading_base -= is_of_base

    def drop(self, digest: str) -> None:
        """Drops an adapter; the rows of requests keep theirs. Ignores unknown digests."""
        self._loaded.pop(digest, None)
        self._of_base.discard(digest)

    def get(self, digest: str) -> LoadedAdapter | None:
        """A loaded adapter; None for "". Raises IntegrityError if it is not loaded."""
        return loaded_adapter(self._loaded, digest)

    def found(self, batch: StepBatch) -> StepBatch:
        """The step with the adapters that it names. Raises IntegrityError as `get` does."""
        if batch.adapters is None:
            return batch
        named = [
            self.get(one.digest) if isinstance(one, NamedAdapter) else one for one in batch.adapters
        ]
        return replace(batch, adapters=named)

    def _read(self, path: Path, max_rank: int, max_bytes: int) -> AdapterFiles:
        """Reads a folder of PEFT, a GGUF file, or a task of the checkpoint."""
        if (path / CONFIG_NAME).exists():
            return read_adapter_or_task(path, max_rank=max_rank, max_bytes=max_bytes)
        from quire.weights.adapters.gguf import HeadCounts, gguf_file, read_gguf_adapter

        if (file := gguf_file(path)) is not None:
            config = self._config.model.hf_text_config
            query = int(config.get("num_attention_heads") or 1)
            heads = HeadCounts(query, int(config.get("num_key_value_heads") or query))
            return read_gguf_adapter(file, heads, max_rank=max_rank, max_bytes=max_bytes)
        return read_adapter_or_task(path, max_rank=max_rank, max_bytes=max_bytes)

    def _limits(self) -> LoRAConfig:
        if self._config.lora is None:
            raise ConfigError("LoRA is not enabled: start the engine with enable_lora=True")
        return self._config.lora

    def _open_base(self, program: Program) -> WeightStore:
        opened = self._weights.open(program)
        if isinstance(opened, PackedFile):
            opened.close()
            raise CheckpointError(
                f"{opened.path}: an adapter with use_dora or modules_to_save needs the weights of "
                "the checkpoint, but these are packed (quire quantize)"
            )
        return opened
