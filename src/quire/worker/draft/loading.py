"""Loads the draft model or the head of a worker, and joins it with the model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from quire.backends.base import Backend, CompiledModel
from quire.config.ranks import Rank
from quire.config.records import EngineConfig, ModelConfig
from quire.log import get_logger, phase
from quire.models import ModelDescription
from quire.models.heads.mark import is_head
from quire.planning.compile_plan import CompilePlan
from quire.program import Program
from quire.ranks import RankGroup
from quire.weights import PackedFile, WeightStore
from quire.worker.draft.head_weights import open_head, tokens_of_rows
from quire.worker.draft.pair import HeadRows, ModelPair
from quire.worker.model_weights import ModelWeights

logger = get_logger(__name__)


def load_pair(
    config: EngineConfig,
    whole: CompilePlan,
    rank: Rank,
    backend: Backend,
    group: RankGroup | None,
    target: CompiledModel,
) -> ModelPair:
    """Compiles a rank's part of the draft model. `whole`: the plan without ranks; `target`: the
    model of this rank. Raises CheckpointError for weights that do not fit, or BackendError."""
    plan = whole.of_rank(rank)
    draft = config.draft
    if draft is None or whole.draft is None or plan.draft is None:
        raise ValueError("the engine has no draft model")
    own = plan.draft
    with (
        phase(logger, f"loading the draft model {draft.model}"),
        closing(_opened(config, draft, whole.draft.program)) as weights,
    ):
        held = target if is_head(draft.hf_config) else None
        model = backend.compile(own.program, weights, own.kv, own.options, group, held)
        weights.check()
    return ModelPair(
        target,
        model,
        backend.kv_block_bytes(plan.program, plan.kv),
        plan.kv.layout.shared_group,
        own.options.max_num_tokens,
        head_rows(config),
    )


def head_rows(config: EngineConfig) -> HeadRows | None:
    """How the rows of the draft head are made and read; None: there is none, or a model drafts.
    Raises CheckpointError."""
    draft = config.draft
    head = None if draft is None else ModelDescription(draft.hf_config).head
    if draft is None or head is None:
        return None
    tokens = tokens_of_rows(draft, head.program.result_width, config.model.vocab_size)
    return HeadRows(head.width, head.own_first, tokens, head.num_at_once)


def _opened(config: EngineConfig, draft: ModelConfig, program: Program) -> WeightStore | PackedFile:
    if is_head(draft.hf_config):
        return open_head(config.model, draft, program)
    return ModelWeights(replace(config, model=draft, draft=None)).open(program)
