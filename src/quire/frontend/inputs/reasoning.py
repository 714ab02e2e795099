"""The tokens of the reasoning marks of a request, on which a budget or a grammar depends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from quire.config.records import ModelConfig
from quire.errors import RequestError, quoted
from quire.param_checks import outside_vocabulary
from quire.params import SamplingParams
from quire.reasoning.marks import ReasoningMarks, ReasoningTokens
from quire.tokenizer import Tokenizer


def reasoning_tokens(
    params: SamplingParams,
    own: ReasoningMarks | None,
    prompt: Sequence[int],
    tokenizer: Tokenizer | None,
    model: ModelConfig,
    *,
    is_held: bool,
) -> ReasoningTokens | None:
    """The tokens of the marks; None if nothing depends on the reasoning or they are unknown. `own`:
    the marks of the engine. `is_held`: a grammar includes the reasoning. Raises RequestError."""
    marks = params.reasoning or own
    is_whole = marks is not None and marks.is_in_grammar
    has_grammar = params.structured_outputs is not None and not is_whole
    if params.thinking_token_budget is not None:
        _check_budget(params, marks, has_tokenizer=tokenizer is not None)
        if has_grammar and is_held:
            raise RequestError(
                "thinking_token_budget must be able to end the reasoning, which "
                "structured_outputs with enable_in_reasoning may forbid; remove one of them.",
                parameter="thinking_token_budget",
                value=params.thinking_token_budget,
            )
    elif not has_grammar or is_held:
        return None
    if marks is None or tokenizer is None:
        return None
    if own is not None and own.end == marks.end:
        marks = msgspec.structs.replace(marks, forced_end=own.forced_end)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    tokens = ReasoningTokens.of(marks, prompt, encode)
    _check_marks(marks, tokens, model)
    return tokens


def _check_budget(
    params: SamplingParams, marks: ReasoningMarks | None, *, has_tokenizer: bool
) -> None:
    """Raises RequestError for a reasoning budget if the end mark of the reasoning is unknown."""
    if marks is not None and has_tokenizer:
        return
    why, how = "reasoning_config is not configured", "set --reasoning-parser or --reasoning-config"
    if not has_tokenizer:
        why, how = "the engine has no tokenizer", "start without skip_tokenizer_init"
    raise RequestError(
        f"thinking_token_budget is set but {why}; {how} to use thinking_token_budget.",
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
