"""Loads the draft model or the head of a worker, and joins it with the model. Of a head, weights of
its own and those that it shares with the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Backend, CompiledModel
from quire.config.ranks import Rank
from quire.config.records import EngineConfig, ModelConfig
from quire.errors import CheckpointError
from quire.log import get_logger, phase
from quire.models.description import ModelDescription
from quire.models.heads.mark import MARK, is_head, own_name
from quire.models.heads.own import OWN
from quire.planning.compile_plan import CompilePlan
from quire.program import Program
from quire.ranks import RankGroup
from quire.weights import PackedFile, WeightStore, bind, folder_store, open_checkpoint
from quire.weights.dummy import DummyStore
from quire.weights.quantised.store import as_shipped
from quire.worker.draft.pair import HeadRows, ModelPair
from quire.worker.model_weights import ModelWeights

logger = get_logger(__name__)

_LM_HEADS = re.compile(r"^lm_heads\.(\d+)\.")
"""vLLM's names of the last linear of a Medusa head."""
_UNUSED = re.compile(rf"{re.escape(OWN)}(d2t|t2d|verifier_norm\.weight|.*rotary_emb\..*)")
"""Tensors of heads that no program reads. Row i of a head stands for token i + d2t[i]; t2d says the
same the other way round."""


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
    """The way in which rows of the draft head are made and read; None: there is no draft, or a
    model drafts. Raises CheckpointError."""
    draft = config.draft
    head = None if draft is None else ModelDescription(draft.hf_config).head
    if draft is None or head is None:
        return None
    tokens = _tokens_of_rows(draft, head.program.result_width, config.model.vocab_size)
    return HeadRows(head.width, head.own_first, tokens, head.num_at_once)


def _opened(config: EngineConfig, draft: ModelConfig, program: Program) -> WeightStore | PackedFile:
    if is_head(draft.hf_config):
        return _open_head(config.model, draft, program)
    return ModelWeights(replace(config, model=draft, draft=None)).open(program)


def _open_head(target: ModelConfig, head: ModelConfig, program: Program) -> WeightStore:
    """Opens the weights of a head's program. Raises CheckpointError if they do not fit it."""
    if head.weights == "dummy":
        return DummyStore(program)
    description = ModelDescription(head.hf_config)
    store = open_checkpoint(target.path)
    if _has_files(head):
        own = open_checkpoint(head.path)
        num_blocks = description.text.get("medusa_num_layers") or 1
        store = folder_store(
            {"": store, OWN: own},
            lambda folder, name: folder + _LM_HEADS.sub(rf"\1.{num_blocks}.", own_name(name)),
        )
    wanted = {part.name for param in program.params() for part in param.parts}

    def canonical(name: str) -> str | None:
        if name in wanted:
            return name
        if name.startswith(OWN):
            return None if _UNUSED.fullmatch(name) else name
        found = description.names.canonical(name)
        return found if found in wanted else None

    return bind(program, as_shipped(store, description.shipped), canonical)


def _tokens_of_rows(head: ModelConfig, num_rows: int, vocab_size: int) -> NDArray[np.int32] | None:
    """The token that each of `num_rows` rows of the head's logits stands for; None: the row's own
    number. Raises CheckpointError."""
    mark: Mapping[str, Any] = head.hf_config[MARK]
    if "d2t" not in mark["tensors"] or head.weights == "dummy":
        return None
    with closing(open_checkpoint(head.path)) as store:
        name = next(name for name in store.names() if own_name(name) == "d2t")
        offsets = store.integers(name).astype(np.int64)
        store.check()
    if offsets.size != num_rows:
        raise CheckpointError(
            f"{head.path}: d2t has {offsets.size} numbers, and draft_vocab_size is {num_rows}"
        )
    found = np.arange(offsets.size) + offsets.reshape(-1)
    wrong = np.flatnonzero((found < 0) | (found >= vocab_size))
    if wrong.size:
        raise CheckpointError(
            f"{head.path}: d2t gives token {found[wrong[0]]} for row {wrong[0]}; it must be from 0 "
            f"to {vocab_size - 1}"
        )
    return found.astype(np.int32)


def _has_files(head: ModelConfig) -> bool:
    return bool(head.hf_config[MARK]["method"] != "mtp")
