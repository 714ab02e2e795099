"""`/v1/embeddings`, `/pooling` and `/classify`: requests and replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.config.pooling import PoolingTask
from quire.server.apis.chat.schema import ChatMessage
from quire.server.generation.request_fields import Count, Int64
from quire.server.pooling.fields import Inputs, PoolingFields, PoolingUsage
from quire.server.pooling.vectors import EmbedDtype, Endianness

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]


class InputFields(PoolingFields, kw_only=True):
    """Exactly one of `input` and `messages`: texts, or a conversation that the model's chat
    template turns into one text."""

    input: Inputs | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = False
    continue_final_message: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class VectorFields(InputFields, kw_only=True):
    """Texts, and the form of their vectors."""

    encoding_format: EncodingFormat | None = "float"
    """`bytes`: the reply is the vectors' bytes, one after another, and its header `metadata` has
    the rest as JSON; `bytes_only`: without this header."""
    embed_dtype: EmbedDtype | None = "float32"
    """Type of the numbers in base64 and bytes."""
    endianness: Endianness | None = "native"
    dimensions: Int64 | None = None


class EmbeddingRequest(VectorFields, kw_only=True):
    """Texts that become vectors."""

    prompt_name: str | None = None
    """Which of the model's prompts is put before each text; by default the model's default."""


class PoolingRequest(VectorFields, kw_only=True):
    """Texts that become what the model gives: vectors, classes, or one of these for each token."""

    task: PoolingTask | None = None


class ClassifyRequest(InputFields, kw_only=True):
    """Texts that are classified."""


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """The vector of one text."""

    index: Count
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str
    """A string is base64."""


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    """The vectors, in the order of the texts."""

    id: str
    object: Literal["list"] = "list"
    created: Count
    model: str
    data: list[EmbeddingItem]
    usage: PoolingUsage


class PoolingItem(msgspec.Struct, kw_only=True):
    """The result of one text."""

    index: Count
    object: Literal["pooling"] = "pooling"
    data: Any
    """Numbers; a list of them for each token where the task is one of tokens; or base64."""


class PoolingResponse(msgspec.Struct, kw_only=True):
    """The results, in the order of the texts."""

    id: str
    object: Literal["list"] = "list"
    created: Count
    model: str
    data: list[PoolingItem]
    usage: PoolingUsage


class ClassifyItem(msgspec.Struct, kw_only=True):
    """The classes of one text."""

    index: Count
    label: str | None
    """The name of the most likely class, if the model has names."""
    probs: list[float]
    num_classes: Count


class ClassifyResponse(msgspec.Struct, kw_only=True):
    """The classes, in the order of the texts."""

    id: str
    object: Literal["list"] = "list"
    created: Count
    model: str
    data: list[ClassifyItem]
    usage: PoolingUsage
