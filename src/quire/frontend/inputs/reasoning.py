"""Reasoning of a request that has a budget for it, or a grammar after it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from quire.config.records import ModelConfig
from quire.errors import RequestError, quoted
from quire.params import SamplingParams
from quire.reasoning.marks import ReasoningMarks, ReasoningTokens
from quire.token_checks import outside_vocabulary
from quire.tokenizer import Tokenizer


def tokens_of_marks(
    marks: ReasoningMarks,
    own: ReasoningMarks | None,
    prompt: Sequence[int],
    tokenizer: Tokenizer,
    model: ModelConfig,
) -> ReasoningTokens:
    """The tokens of a request's marks. `own`: the marks of the engine, which may force another end
    than the one that is looked for. Raises RequestError."""
    if own is not None and own.end == marks.end:
        marks = msgspec.structs.replace(marks, forced_end=own.forced_end)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    tokens = ReasoningTokens.of(marks, prompt, encode)
    _check_marks(marks, tokens, model)
    return tokens


def check_budget(
    params: SamplingParams,
    marks: ReasoningMarks | None,
    tokenizer: Tokenizer | None,
    *,
    is_held: bool,
) -> None:
    """Raises RequestError for a reasoning budget if the end mark of the reasoning is unknown, or if
    a grammar includes the reasoning (`is_held`)."""
    if marks is None or tokenizer is None:
        why, how = (
            "reasoning_config is not configured",
            "set --reasoning-parser or --reasoning-config",
        )
        if tokenizer is None:
            why, how = "the engine has no tokenizer", "start without skip_tokenizer_init"
        raise RequestError(
            f"thinking_token_budget is set but {why}; {how} to use thinking_token_budget.",
            parameter="thinking_token_budget",
            value=params.thinking_token_budget,
        )
    if is_held:
        raise RequestError(
            "thinking_token_budget must be able to end the reasoning, which "
            "structured_outputs with enable_in_reasoning may forbid; remove one of them.",
            parameter="thinking_token_budget",
            value=params.thinking_token_budget,
        )


def _check_marks(marks: ReasoningMarks, tokens: ReasoningTokens, model: ModelConfig) -> None:
    """Raises RequestError for reasoning marks that the model cannot write."""
    for text, ids in ((marks.begin, tokens.begin), (marks.end, tokens.forced_end)):
        outside = outside_vocabulary(ids, model.vocab_size)
        if outside or not ids:
            raise RequestError(
                f"the reasoning mark {quoted(text)} must consist of tokens below "
                f"{model.vocab_size}, not {ids}; set --reasoning-parser to that of this model",
                parameter="thinking_token_budget",
            )
