"""The results of pooling requests. Names are vLLM's; vectors are NumPy arrays where vLLM has
tensors of torch.

Created by the OutputProcessor; the tasks of `LLM` and the server convert `PoolingRequestOutput` to
the other classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Output = TypeVar("_Output")


@dataclass
class PoolingOutput:
    """A result as the model gives it: [D], or [tokens, D] where each token has one; float32."""

    data: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"PoolingOutput(data={self.data})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and np.array_equal(self.data, other.data)


@dataclass(frozen=True)
class LateChunk:
    """A piece of a text: its tokens and its characters, from the first up to the last one."""

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None
    """None: it has special tokens alone."""


@dataclass(frozen=True)
class LateChunkingMetadata:
    """The pieces of a text that have vectors."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
    strategy: str = "fixed_tokens"


@dataclass
class PoolingRequestOutput(Generic[_Output]):
    """The output of one request."""

    request_id: str
    outputs: _Output
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: str | None = field(default=None, kw_only=True)
    """The reason why there is no result."""
    late_chunking: LateChunkingMetadata | None = field(default=None, kw_only=True)
    """The pieces of the text, with `late_chunking_params`."""

    def with_outputs(self, outputs: object) -> tuple[str, object, list[int], int, bool]:
        """The fields of an output of another kind."""
        return self.request_id, outputs, self.prompt_token_ids, self.num_cached_tokens, True


@dataclass
class EmbeddingOutput:
    """A vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Its length."""
        return len(self.embedding)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass
class ClassificationOutput:
    """The probability of each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.probs)

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


@dataclass
class ScoringOutput:
    """Score of two texts: a larger one means that they fit better."""

    score: float

    def __repr__(self) -> str:
        return f"ScoringOutput(score={self.score})"


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The output of a request for a vector."""

    @classmethod
    def from_base(cls, output: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        """Convert a result of one row."""
        return cls(*output.with_outputs(EmbeddingOutput(_row(output))))  # type: ignore[arg-type]


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The output of a request for classes."""

    @classmethod
    def from_base(cls, output: PoolingRequestOutput[PoolingOutput]) -> ClassificationRequestOutput:
        """Convert a result of one row."""
        return cls(*output.with_outputs(ClassificationOutput(_row(output))))  # type: ignore[arg-type]


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The output of a pair of texts."""


def _row(output: PoolingRequestOutput[PoolingOutput]) -> list[float]:
    if output.outputs.data.ndim != 1:
        raise ValueError("pooled_data should be a 1-D embedding vector")
    row: list[float] = output.outputs.data.tolist()
    return row
