"""`PromptAdapters`: the rows of prompt adapters, by digest.

Kept where steps are prepared: the rows of a step travel to the ranks with its other arrays. Loaded
on any thread; used by the thread that prepares steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.given_rows import RowWidths
from quire.config.records import EngineConfig
from quire.errors import ConfigError, IntegrityError
from quire.models import build_program
from quire.protocol import InputRows
from quire.weights.adapters import read_prompt_adapter


class PromptAdapters:
    """Adapters that are loaded."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._loaded: dict[bytes, NDArray[np.float32]] = {}

    def load(self, path: str) -> dict[str, Any]:
        """Loads the adapter in a folder: `digest`, `num_bytes`, `num_tokens`, `kind` and a
        `description`. Raises CheckpointError."""
        limits = self._config.prompt_adapters
        if limits is None:
            raise ConfigError("prompt adapters are not enabled: use enable_prompt_adapter=True")
        widths = RowWidths.of(build_program(self._config.model.hf_config))
        adapter = read_prompt_adapter(
            Path(path),
            max_tokens=limits.max_prompt_adapter_token,
            embedding_width=widths.embedding,
            kv_width=widths.kv,
        )
        self._loaded[adapter.digest] = adapter.rows
        return {
            "digest": adapter.digest.hex(),
            "num_bytes": adapter.rows.nbytes,
            "num_tokens": len(adapter.rows),
            "kind": adapter.kind,
            "description": f"{len(adapter.rows)} virtual tokens",
        }

    def drop(self, digest: str) -> None:
        """Drops an adapter, which no request uses. Ignores unknown digests."""
        self._loaded.pop(bytes.fromhex(digest), None)

    def find(self, given: InputRows) -> NDArray[np.float32]:
        """The rows of a request. Raises IntegrityError if they are not loaded."""
        found = self._loaded.get(given.digest)
        if found is None:
            raise IntegrityError(f"the input rows {given.digest.hex()} are not loaded")
        return found
