"""`PoolingParams`: what one request for vectors or classes asks for. Names are vLLM's.

Created by users and sent in `EngineCoreRequest`. Checks what does not depend on a model; `verify`
checks the rest.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from quire.config.pooling import POOLING_TASKS, PoolingConfig
from quire.errors import RequestError, quoted
from quire.log import get_logger
from quire.param_checks import as_int

logger = get_logger(__name__)

_REMOVED = {
    "score": "`score` task was removed; use `classify` instead.",
    "encode": "`encode` task was removed; use `token_embed` or `token_classify` instead.",
}


class LateChunkingParams(msgspec.Struct):
    """Means of the vectors of so many tokens each: pieces of a text that know the whole of it."""

    chunk_size: int
    """Tokens of a piece, special tokens included; the last piece may have fewer."""

    def __post_init__(self) -> None:
        self.chunk_size = as_int("chunk_size", self.chunk_size)
        if self.chunk_size < 1:
            raise _error("chunk_size", self.chunk_size, "must be greater than 0")


class PoolingParams(msgspec.Struct, omit_defaults=True):
    """The parameters of one request. None: as the engine has it."""

    use_activation: bool | None = None
    """Whether vectors are divided by their length, and scores become probabilities."""
    dimensions: int | None = None
    """Length of the vectors, for models that are trained for several (Matryoshka)."""
    task: str | None = None
    skip_reading_prefix_cache: bool | None = None
    prompt_name: str | None = None
    """Which of the model's prompts is put before a text: a name of `prompts` in
    config_sentence_transformers.json. None: the model's default, if it has one; "": no prompt."""
    token_type_ids: list[int] = []
    """The segment of each token: 0, or 1 for those of the second text of a pair. Empty: all 0."""
    extra_kwargs: dict[str, Any] | None = None
    """Accepted and not used."""
    late_chunking_params: LateChunkingParams | None = None
    """For the task token_embed: the vectors of pieces of a text in place of those of its tokens."""

    def __post_init__(self) -> None:
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if not isinstance(getattr(self, name), bool | None):
                raise _error(name, getattr(self, name), "must be True, False or None")
        if self.dimensions is not None:
            self.dimensions = as_int("dimensions", self.dimensions)
            _check_positive(self.dimensions)
        chunking = self.late_chunking_params
        if not isinstance(chunking, LateChunkingParams | None):
            wanted = "must be LateChunkingParams(chunk_size=256), or None"
            raise _error("late_chunking_params", chunking, wanted)
        if self.task in _REMOVED:
            raise RequestError(_REMOVED[str(self.task)], parameter="task", value=self.task)
        if self.task is not None and self.task not in POOLING_TASKS:
            raise _error("task", self.task, f"must be one of {', '.join(POOLING_TASKS)}")

    def clone(self) -> PoolingParams:
        """A copy."""
        return copy.copy(self)

    def verify(self, pooling: PoolingConfig, model: str, num_types: int) -> None:
        """Raises RequestError for what the model does not support."""
        if self.task is not None and self.task not in pooling.supported_tasks:
            raise RequestError(
                f"Unsupported task: {quoted(self.task)}. Supported tasks: "
                f"{list(pooling.supported_tasks)}. Try switching the model's pooling_task via "
                f"--pooler-config.task {self.task}.",
                parameter="task",
                value=self.task,
            )
        if self.prompt_name and self.prompt_name not in pooling.prompts:
            known = ", ".join(sorted(pooling.prompts)) or "none"
            raise _error("prompt_name", self.prompt_name, f"must be one of the model's: {known}")
        own = pooling.of(self.task)
        if self.late_chunking_params is not None and (
            own.task != "token_embed" or own.step_tag_id is not None or own.has_activations
        ):
            wanted = (
                "needs the task token_embed, no step_tag_id, and dense layers without activations"
            )
            raise _error("late_chunking_params", self.late_chunking_params, wanted)
        if self.dimensions is not None:
            self._verify_dimensions(self.dimensions, pooling, model)
        wrong = [one for one in self.token_type_ids if not 0 <= one < num_types]
        if wrong:
            raise _error("token_type_ids", wrong[0], f"must be numbers from 0 to {num_types - 1}")

    def _verify_dimensions(self, dimensions: int, pooling: PoolingConfig, model: str) -> None:
        _check_positive(dimensions)
        if not pooling.task.endswith("embed") or pooling.dimensions is None:
            raise RequestError(
                f"Model {quoted(model)} does not support Matryoshka embeddings; dimensions must be "
                f"unset (received dimensions={dimensions}).",
                parameter="dimensions",
                value=dimensions,
            )
        allowed = pooling.dimensions
        if allowed and dimensions not in allowed:
            raise RequestError(
                f"Model {quoted(model)} only supports Matryoshka dimensions {list(allowed)}, got "
                f"dimensions={dimensions}.",
                parameter="dimensions",
                value=dimensions,
            )
        if dimensions > pooling.width:
            raise RequestError(
                f"Model {quoted(model)} only supports dimensions in range [1, {pooling.width}], "
                f"got dimensions={dimensions}.",
                parameter="dimensions",
                value=dimensions,
            )


def _check_positive(dimensions: int) -> None:
    if dimensions < 1:
        raise _error("dimensions", dimensions, "must be greater than 0")


def prompt_of(params: PoolingParams, pooling: PoolingConfig) -> str:
    """The text to put before an input; "": nothing."""
    name = pooling.default_prompt if params.prompt_name is None else params.prompt_name
    return pooling.prompts.get(name or "", "")


def _error(name: str, value: object, wanted: str) -> RequestError:
    return RequestError(f"{name} {wanted}, got {quoted(value)}", parameter=name, value=value)
