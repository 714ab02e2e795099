"""The model for a request that names none: of several, the first that can answer its route."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.config.pooling import PoolingTask
from quire.config.records import ModelConfig
from quire.server.endpoint import Gives
from quire.server.served_model import ServedModel


def _pools_by(task: PoolingTask) -> Callable[[ModelConfig], bool]:
    return lambda model: model.pooling is not None and model.pooling.task == task


def _is_cross_encoder(model: ModelConfig) -> bool:
    return model.pooling is not None and model.pooling.scoring == "cross-encoder"


_CAN: dict[str, tuple[Callable[[ModelConfig], bool], ...]] = {
    "anything": (lambda _: True,),
    "text": (
        lambda model: model.pooling is None and not model.num_sources,
        lambda model: model.pooling is None,
    ),
    "words of sound": (
        lambda model: model.num_sources > 0,
        lambda model: model.pooling is None and model.takes("audio"),
    ),
    "pooled": (lambda model: model.pooling is not None,),
    "embed": (_pools_by("embed"),),
    "classify": (_pools_by("classify"),),
    "token_embed": (_pools_by("token_embed"), lambda model: "token_embed" in model.supported_tasks),
    "token_classify": (_pools_by("token_classify"),),
    "embed or classify": (
        lambda model: model.pooling is not None and model.pooling.task in ("embed", "classify"),
    ),
    "sparse": (lambda model: model.pooling is not None and model.pooling.is_sparse,),
    "scores": (
        _is_cross_encoder,
        lambda model: model.pooling is not None and model.pooling.scoring is not None,
    ),
}
"""Conditions, the best first."""


def first_that_gives(models: Sequence[ServedModel], gives: Gives) -> ServedModel:
    """The first model that can answer such a route; the first one if none can, whose refusal says
    why."""
    for can in _CAN[gives]:
        for model in models:
            config = model.planned if model.engine is None else model.engine.config
            if config is not None and can(config.model):
                return model
    return models[0]
