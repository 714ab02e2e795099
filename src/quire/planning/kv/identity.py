"""`kv_fingerprint`: identifies everything that determines the bits of K/V.

Equal fingerprints mean equal bits for equal tokens, in any process and on any machine, so that K/V
can be kept in files and shared. It includes everything that may make a difference, even rarely. It
does not include the model's name and path.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quire.config.records import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from quire.planning.kv.weights_digest import weights_digest
from quire.version import __version__

if TYPE_CHECKING:
    from quire.backends.records import Capabilities

_IRRELEVANT = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})
"""Keys of config.json that do not influence the program. The dtype of the computation is
`ModelConfig.dtype`."""
_PACKAGE = Path(__file__).parents[2]
_COMPUTING = ("backends", "gguf", "images", "models", "program", "weights")
"""Packages whose code determines the bits of K/V."""


def kv_fingerprint(
    model: ModelConfig,
    cache: CacheConfig,
    backend: Capabilities,
    weights: str,
    parallel: ParallelConfig,
) -> str:
    """Return 64 hex digits. `weights`: the `weights_digest`. `kvcache.model_root` adds the block
    size and the format of K/V."""
    parts = {
        "quire": [__version__, _code_digest()],
        "backend": [backend.name, backend.build],
        "config": _relevant(model.hf_config),
        "weights": [model.weights, weights],
        "dtype": model.dtype,
        "quantization": model.quantization,
        "layout": msgspec.to_builtins(cache.layout),
        "block_bytes": cache.block_bytes,
    }
    if parallel.world_size > 1:  # a block has a part of each rank
        parts["ranks"] = [parallel.pipeline_parallel_size, parallel.tensor_parallel_size]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _code_digest() -> str:
    """Return a hash of the Python code that computes K/V. In a checkout of the sources it changes
    while the version stays the same."""
    digest = hashlib.sha256()
    for package in _COMPUTING:
        for path in sorted((_PACKAGE / package).rglob("*.py")):
            if path.parent.name != "_native":  # the backend's build has its libraries
                data = path.read_bytes()
                digest.update(f"{path.relative_to(_PACKAGE)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def reread_fingerprint(config: EngineConfig, backend: Capabilities) -> str:
    """Return the fingerprint of the weights that are in the files now, which may have changed since
    the start."""
    weights = weights_digest(config.model.path, config.model.weights)
    if (draft := config.draft) is not None:
        weights = with_draft(weights, draft, weights_digest(draft.path, draft.weights))
    return kv_fingerprint(config.model, config.cache, backend, weights, config.parallel)


def with_draft(weights: str, draft: ModelConfig, digest: str) -> str:
    """The `weights_digest` of a model, with all that determines the K/V of its draft model.
    `digest`: the `weights_digest` of the draft model."""
    parts = [weights, digest, _relevant(draft.hf_config), draft.dtype, draft.quantization]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _relevant(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _relevant(item) for key, item in value.items() if key not in _IRRELEVANT}
    return value
