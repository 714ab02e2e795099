"""Makes the runner of a model, which turns plans into steps and their outputs into results;
`may_begin_ahead`: whether a step may begin before the one before it is collected."""

from __future__ import annotations

from collections.abc import Callable

from quire.backends.base import StepModel
from quire.backends.records import LoadedAdapter
from quire.config.records import EngineConfig
from quire.config.speculation import SpeculationConfig
from quire.models import ModelDescription
from quire.worker.draft.drafter import Drafter
from quire.worker.draft.medusa import MedusaDrafter
from quire.worker.given_rows import FindRows, rows_are_missing
from quire.worker.input_batch import InputBatch
from quire.worker.model_runner import ModelRunner
from quire.worker.pooling_runner import PoolingRunner


def make_runner(
    config: EngineConfig,
    model: StepModel,
    adapter: Callable[[str], LoadedAdapter | None] = lambda _: None,
    find_rows: FindRows = rows_are_missing,
    *,
    keeps_tokens: bool = False,
) -> ModelRunner | PoolingRunner:
    """The runner for the requests of an engine. `adapter`: looks up a loaded adapter by its digest;
    `find_rows`: rows that take the place of embeddings; `keeps_tokens`: as of `InputBatch`.
    Raises ConfigError if a custom logits processor cannot be loaded or created."""
    layout = config.cache.layout
    batch = InputBatch(
        config.scheduler.max_num_seqs,
        len(layout.groups),
        layout.table_width(config.model.max_positions, config.cache.block_size),
        config.model.vocab_size,
        config.model.logprobs_mode,
        adapter,
        find_rows,
        keeps_tokens=keeps_tokens,
    )
    if config.model.pooling is not None:
        return PoolingRunner(model, batch, config.model.pooling, layout.keeps_all)
    processing = None
    if config.model.logits_processors:
        from quire.worker.processors.processing import LogitsProcessing

        processing = LogitsProcessing(config)
    drafter: Drafter | MedusaDrafter | None = None
    if config.draft is not None and layout.shared_group is not None:
        head = ModelDescription(config.draft.hf_config).head
        has_kv = head is None or not head.num_at_once
        drafter = (
            MedusaDrafter()
            if not has_kv
            else Drafter(
                batch, layout.shared_group, config.cache.block_size, config.draft.max_model_len
            )
        )
    return ModelRunner(
        model, batch, keeps_all=layout.keeps_all, processing=processing, drafter=drafter
    )


def may_begin_ahead(config: EngineConfig) -> bool:
    """Whether every request can do without the host between two of its steps, unless it waits for
    its tokens (`SamplingParams.follows_tokens`), and the engine does not compute by turns. Drafts
    by default are few: they are proposed where no plan is in flight."""
    model, speculation = config.model, config.scheduler.speculation
    return not (
        model.pooling
        or model.logits_processors
        or model.num_sources
        or config.draft
        or (speculation is not None and speculation != SpeculationConfig())
        or config.device.turns
    )
