"""Makes the helpers in tests/fakes importable; configurations that need no model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kv_layouts import group_of

from quire.config.kv_layout import KVLayout
from quire.config.records import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)
from quire.tokenizer import Tokenizer

ONE_GROUP = KVLayout((group_of((0,), 1, 1),), 1)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(model_dir)


@pytest.fixture
def make_config() -> Callable[..., EngineConfig]:
    """An EngineConfig; keywords replace fields of its parts."""

    def make(**given: Any) -> EngineConfig:
        model = {
            "model": "m", "path": Path(), "tokenizer_path": None, "hf_config": {},
            "architecture": "A", "dtype": "float32", "max_model_len": 64, "vocab_size": 288,
            "served_model_name": ("m",), "eos_token_ids": (256,),
        }  # fmt: skip
        scheduler = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
        cache = {
            "block_size": 16, "num_blocks": 32, "kv_cache_dtype": "float32",
            "enable_prefix_caching": True, "block_bytes": 1, "layout": ONE_GROUP,
        }  # fmt: skip
        for fields in (model, scheduler, cache):
            fields.update({name: given.pop(name) for name in list(given) if name in fields})
        scheduler.update({name: given.pop(name) for name in ("policy",) if name in given})
        model.update(given)
        return EngineConfig(
            model=ModelConfig(**model),
            cache=CacheConfig(**cache),
            scheduler=SchedulerConfig(**scheduler),
            device=DeviceConfig("reference", None, 1),
            observability=ObservabilityConfig(log_stats=False, stats_interval_s=10.0),
        )

    return make
