"""`AsyncLLM` over the fake core: real tokenizer, real streams, answers computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kv_layouts import FULL

from quire.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)
from quire.core.client import ThreadHost
from quire.frontend.online.async_llm import AsyncLLM


def fake_config(
    model: str = "fake",
    tokenizer: Path | None = None,
    max_num_seqs: int = 4,
    prompt_embeds_width: int | None = None,
    **scheduler: Any,
) -> EngineConfig:
    """A configuration of nothing real."""
    return EngineConfig(
        model=ModelConfig(
            model=model, path=Path("/nowhere/fake"), tokenizer_path=tokenizer,
            hf_config={"architectures": ["Fake"], "nested": {"a": [1, 2.5, None]}},
            architecture="Fake", dtype="float32", max_model_len=512, vocab_size=260,
            served_model_name=("tiny", "alias"), eos_token_ids=(258,),
            prompt_embeds_width=prompt_embeds_width,
        ),
        cache=CacheConfig(
            block_size=16, num_blocks=100, kv_cache_dtype="float32", enable_prefix_caching=True,
            block_bytes=1024, layout=FULL,
        ),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=256, max_num_seqs=max_num_seqs, **scheduler
        ),
        device=DeviceConfig("reference", None, 1),
        observability=ObservabilityConfig(log_stats=False, stats_interval_s=10.0),
    )  # fmt: skip


def fake_engine(tokenizer: Path, core: Callable[[EngineConfig], Any], **scheduler: Any) -> AsyncLLM:
    """An engine whose core is `core`, in a thread."""
    config = fake_config(tokenizer=tokenizer, **scheduler)
    client = ThreadHost(lambda: core(config), step_timeout_s=60.0)
    return AsyncLLM(config, client=client)
