"""Scores of pairs of texts: what is sent to the engine for them, and what its results mean.

Used by `LLM.score` and by the server's `/score` and `/rerank`. A cross-encoder reads both texts of
a pair at once. A bi-encoder gives each text a vector, and late interaction a vector for each token;
these are compared afterwards.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.chat.job import ChatInput
from quire.config.pooling import PoolingConfig
from quire.config.records import ModelConfig
from quire.errors import ConfigError, RequestError, quoted
from quire.frontend.arguments import located
from quire.frontend.inputs.refusals import check_text, works, wrong_task
from quire.frontend.inputs.tokenization import Truncation
from quire.inputs import PromptType, TokensPrompt
from quire.outputs import PoolingOutput, PoolingRequestOutput, ScoringOutput, ScoringRequestOutput
from quire.protocol.pooling_params import PoolingParams, prompt_of
from quire.tokenizer import Tokenizer

Floats = NDArray[np.float32]
Result = PoolingRequestOutput[PoolingOutput]

_NEEDS_TOKENIZER = "pairs of texts need a tokenizer: leave out skip_tokenizer_init"
_QUERY, _DOCUMENT = (f"quire-{name}-{secrets.token_hex(12)}" for name in ("query", "document"))
"""Stand-ins for the two texts while a form is made."""
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Qwen3-Reranker's. Source: the model's card."""


@dataclass(frozen=True, slots=True)
class ScoreLimits:
    """Maximum lengths of the texts of a pair, in tokens; 0: the model's limit."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    truncation: Truncation | None = None
    """Number of tokens that a pair keeps: its document is cut; None: it must fit the model."""


@dataclass(frozen=True, slots=True)
class PairForm:
    """A text in which a query and a document have places."""

    text: str
    adds_special_tokens: bool

    @classmethod
    def own(cls, model: ModelConfig, instruction: str | None = None) -> PairForm | None:
        """The form that a model has without a chat template; None: it has none. `instruction`:
        what makes a document fit; None: the form's own."""
        match None if model.pooling is None else model.pooling.score_form:
            case "joined":
                return cls(_QUERY + _DOCUMENT, adds_special_tokens=True)
            case "qwen3":
                asked = instruction or _INSTRUCTION
                text = _TEMPLATE.format(instruction=asked, query=_QUERY, document=_DOCUMENT)
                return cls(text, adds_special_tokens=False)
        return None

    @classmethod
    def rendered(cls, text: str, *, is_own: bool) -> PairForm:
        """The form for `pair_chat` as a chat template rendered it. `is_own`: the template is the
        checkpoint's, which writes the special tokens. Raises RequestError unless the text contains
        both texts."""
        for role, mark in (("query", _QUERY), ("document", _DOCUMENT)):
            if mark not in text:
                raise RequestError(
                    f"the chat template must show the message of the role {role}: a reranker's "
                    "template is given with chat_template"
                )
        return cls(text, adds_special_tokens=not is_own)

    def filled(self, query: str, document: str) -> str:
        """The text of a pair."""
        texts = {_QUERY: query, _DOCUMENT: document}
        return re.sub("|".join(texts), lambda found: texts[found[0]], self.text)


def pair_chat(
    pooling: PoolingConfig,
    *,
    instruction: str | None = None,
    prompt_name: str | None = None,
    chat_template: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> ChatInput:
    """The conversation that a chat template turns into a `PairForm`. The instruction, or else the
    model's prompt, is the message of the system, as in sentence-transformers; the instruction is a
    variable too, as in vLLM."""
    settings, own = dict(pooling.template_settings), dict[str, Any]()
    asked = prompt_of(PoolingParams(prompt_name=prompt_name), pooling)
    if instruction is not None:
        asked, own = instruction, {"instruction": instruction}
    system = [{"role": "system", "content": asked}] if asked else []
    pair = (("query", _QUERY), ("document", _DOCUMENT))
    return ChatInput(
        [*system, *({"role": role, "content": mark} for role, mark in pair)],
        add_generation_prompt=settings.pop("add_generation_prompt", False) is True,
        chat_template=chat_template,
        variables={**settings, **own, **(variables or {})},
    )


@dataclass
class PairTokens:
    """Turns pairs of texts into prompts of one program that reads both."""

    model: ModelConfig
    tokenizer: Tokenizer | None
    limits: ScoreLimits = ScoreLimits()
    form: PairForm | None = None
    """None: the tokenizer joins the two texts."""
    prompt_name: str | None = None
    """Which of the model's prompts is put before a query without a form; None: the default."""

    def prompt(self, query: str, document: str) -> TokensPrompt:
        """Raises ConfigError without a tokenizer, and RequestError for texts that are too long."""
        tokenizer, limits = self.tokenizer, self.limits
        if tokenizer is None:
            raise ConfigError(_NEEDS_TOKENIZER)
        found = self._encoded(tokenizer, query, document)
        count = len(found["prompt_token_ids"])
        if limits.truncation is None:
            if self.model.pooling is not None:
                check_text(count, self.model.pooling, self.model.max_model_len)
            return found
        limit = limits.truncation.num_tokens
        side = limits.truncation.side or tokenizer.truncation_side
        kept = tokenizer.ending if side == "left" else tokenizer.beginning
        room = 0 if count <= limit else len(tokenizer.encode(document, add_special_tokens=False))
        while count > limit:
            # The document's tokens in the pair may be more than those that it has alone.
            room -= count - limit
            if room < 1:
                raise RequestError(
                    f"a query must leave room for at least one token of a document; it leaves none "
                    f"of {limit} tokens",
                    parameter="truncate_prompt_tokens",
                )
            found = self._encoded(tokenizer, query, kept(document, room))
            count = len(found["prompt_token_ids"])
        return found

    def _encoded(self, tokenizer: Tokenizer, query: str, document: str) -> TokensPrompt:
        if self.form is not None:
            text = self.form.filled(query, document)
            special = self.form.adds_special_tokens
            return {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=special)}
        pair = tokenizer.encode_pair(self._beginning + query, document)
        types = pair.type_ids if any(pair.type_ids) and self._has_types else []
        return {"prompt_token_ids": pair.ids, "token_type_ids": types}

    @cached_property
    def _beginning(self) -> str:
        pooling, params = self.model.pooling, PoolingParams(prompt_name=self.prompt_name)
        return "" if pooling is None else prompt_of(params, pooling)

    @cached_property
    def _has_types(self) -> bool:
        from quire.models import build_program

        return build_program(self.model.hf_config).num_token_types > 1


@dataclass
class Scoring:
    """The texts of a request for scores, and the prompts that the engine computes for them."""

    model: ModelConfig
    tokenizer: Tokenizer | None
    queries: Sequence[str]
    documents: Sequence[str]
    limits: ScoreLimits = ScoreLimits()
    form: PairForm | None = None
    prompt_name: str | None = None
    names: tuple[str, str] = ("data_1", "data_2")
    """The caller's names of the two lists, for errors."""
    prompts: list[PromptType] = field(init=False)
    """For a cross-encoder a prompt for each pair; otherwise those of the queries, then of the
    documents."""

    def __post_init__(self) -> None:
        """Raises RequestError for numbers of texts that do not fit each other, and for a model
        that does not score."""
        pooling = self.model.pooling
        if pooling is None or pooling.scoring is None:
            raise RequestError(_refusal(self.model))
        num_queries, num_documents = len(self.queries), len(self.documents)
        if not num_queries or not num_documents:
            name = self.names[1] if num_queries else self.names[0]
            raise RequestError(f"{name} must hold at least one text", parameter=name)
        if num_queries not in (1, num_documents):
            raise RequestError(
                "Input lengths must be either 1:1, 1:N or N:N", parameter=self.names[0]
            )
        queries = self._beginnings(self.queries, self.limits.max_tokens_per_query)
        documents = self._beginnings(self.documents, self.limits.max_tokens_per_doc)
        if self.is_cross_encoder:
            pairs = PairTokens(self.model, self.tokenizer, self.limits, self.form, self.prompt_name)
            queries *= num_documents if num_queries == 1 else 1
            self.prompts = []
            for index, pair in enumerate(zip(queries, documents, strict=True)):
                with located(self.names[1], index, num_documents):
                    self.prompts.append(pairs.prompt(*pair))
        else:
            self.prompts = [*queries, *documents]

    def _beginnings(self, texts: Sequence[str], num_tokens: int) -> list[str]:
        """The texts with so many tokens at most; 0: as they are."""
        if not num_tokens:
            return [*texts]
        if self.tokenizer is None:
            raise ConfigError(_NEEDS_TOKENIZER)
        return [self.tokenizer.beginning(text, num_tokens) for text in texts]

    @property
    def fields(self) -> list[tuple[str, int]]:
        """The caller's names of the texts in `prompts`, and how many there are of each."""
        counts = len(self.queries), len(self.documents)
        return [*zip(self.names, counts, strict=True)][self.is_cross_encoder :]

    @property
    def is_cross_encoder(self) -> bool:
        return self.model.pooling is not None and self.model.pooling.scoring == "cross-encoder"

    def scores(self, results: Sequence[Result]) -> list[ScoringRequestOutput]:
        """The scores of the pairs, given the results of `prompts`."""
        if self.is_cross_encoder:
            return [_scored(one, float(one.outputs.data[0]), [one]) for one in results]
        num_queries = len(self.queries)
        queries, documents = list(results[:num_queries]), results[num_queries:]
        if num_queries == 1:
            queries *= len(documents)
        return [
            _scored(
                document, similarity(query.outputs.data, document.outputs.data), [query, document]
            )
            for query, document in zip(queries, documents, strict=True)
        ]


def similarity(query: Floats, document: Floats) -> float:
    """The cosine of two vectors; of two texts with a vector for each token, the sum of each query
    token's best product (Khattab and Zaharia 2020, ColBERT)."""
    a, b = query.astype(np.float64), document.astype(np.float64)
    if a.ndim == 2:
        if not len(b):
            return 0.0
        return float((a @ b.T).max(axis=1).sum())
    length = np.sqrt(np.square(a).sum()) * np.sqrt(np.square(b).sum())
    return float((a * b).sum() / max(float(length), 1e-12))


def _scored(output: Result, score: float, used: Sequence[Result]) -> ScoringRequestOutput:
    tokens = [token for one in used for token in one.prompt_token_ids]
    cached = sum(one.num_cached_tokens for one in used)
    return ScoringRequestOutput(output.request_id, ScoringOutput(score), tokens, cached, True)


def _refusal(model: ModelConfig) -> str:
    pooling = model.pooling
    if pooling is None:
        return wrong_task(model, "score")
    return (
        f"{quoted(model.served_model_name[0])} gives {pooling.width} classes, and a score needs "
        f"one (num_labels=1); use {works(pooling)}"
    )
