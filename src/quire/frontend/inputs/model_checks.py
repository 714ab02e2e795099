"""Checks of parameters and prompts by the model. Called by the input processor, `LLM` and the
server; `refusals` has the texts."""

from __future__ import annotations

from quire.config.pooling import PoolingConfig
from quire.config.records import ModelConfig
from quire.errors import PromptError, RequestError, quoted
from quire.frontend.inputs.refusals import LESS
from quire.logits_processors.interface import LogitsProcessor, class_name
from quire.param_checks import check_for_model, outside_vocabulary
from quire.params import SamplingParams
from quire.reasoning.marks import ReasoningMarks, ReasoningTokens
from quire.system.deferred_signals import raise_ctrl_c


def check_text(num_tokens: int, pooling: PoolingConfig, max_model_len: int) -> None:
    """Raises PromptError for a text that is longer than the longest of a pooling task."""
    longest = pooling.longest_text(max_model_len)
    if longest is None or num_tokens <= longest:
        return
    pieces = (
        ", or start the engine with pooler_config {'enable_chunked_processing': true} to average "
        "the vectors of its pieces"
    )
    raise PromptError(
        f"This model's maximum context length is {longest} tokens. However, your text "
        f"contains {num_tokens} input tokens. {LESS} Or set truncate_prompt_tokens=-1 to cut it"
        f"{pieces * (pooling.task == 'embed')}.",
        parameter="input_tokens",
        value=num_tokens,
    )


def check_params(params: SamplingParams, model: ModelConfig, *, has_tokenizer: bool) -> None:
    """Raises RequestError for parameters that this model does not support."""
    check_for_model(params, model.vocab_size, model.max_logprobs)
    for name in ("stop", "bad_words"):
        if getattr(params, name) and not has_tokenizer:
            raise RequestError(
                f"{name} strings require a tokenizer: start without skip_tokenizer_init",
                parameter=name,
                value=getattr(params, name),
            )
    if params.structured_outputs is not None and not has_tokenizer:
        raise RequestError(
            "Structured outputs requires a tokenizer so it can't be used with "
            "'skip_tokenizer_init'",
            parameter="structured_outputs",
        )


def check_processor(processor: type[LogitsProcessor], params: SamplingParams) -> None:
    """Raises RequestError if a logits processor rejects the parameters. A ValueError of the
    processor provides the message."""
    try:
        processor.validate_params(params)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(str(error)) from error
    except BaseException as error:
        raise_ctrl_c(error)
        text = f"{type(error).__name__}: {error}"
        message = f"logits processor {class_name(processor)} refuses the parameters: {text}"
        raise RequestError(message) from error


_OF_THE_MODEL = (
    " The model's generation_config.json forbids tokens too; the engine's generation_config='vllm' "
    "ignores it."
)


def check_bans(params: SamplingParams, banned_token_ids: list[int], model: ModelConfig) -> None:
    """Raises RequestError if bad words contain tokens outside of the vocabulary, or if no token, or
    none of `allowed_token_ids`, can be the first one. The bad words of `params` must be tokens
    already; `banned_token_ids` are the tokens that `min_tokens` forbids."""
    words = params.bad_words_token_ids or []
    outside = outside_vocabulary(
        (token_id for word in words for token_id in word), model.vocab_size
    )
    if outside:
        raise RequestError(
            f"The model vocabulary size is {model.vocab_size}, but the following tokens were "
            f"specified as bad: {outside}.",
            parameter="bad_words",
            value=params.bad_words,
        )
    of_the_model = params.never_generated.at_first(0)
    banned = {*banned_token_ids, *of_the_model, *(word[0] for word in words if len(word) == 1)}
    if params.allowed_token_ids is None:
        if len(banned) - len(outside_vocabulary(banned, model.vocab_size)) >= model.vocab_size:
            raise RequestError(
                f"min_tokens={params.min_tokens} forbids the stop_token_ids, which with bad_words "
                f"are all {model.vocab_size} tokens; set min_tokens to 0.",
                parameter="min_tokens",
                value=params.min_tokens,
            )
        return
    if banned.issuperset(params.allowed_token_ids):
        raise RequestError(
            "allowed_token_ids must contain a token that min_tokens and bad_words do not forbid, "
            f"got {quoted(params.allowed_token_ids)}." + (_OF_THE_MODEL if of_the_model else ""),
            parameter="allowed_token_ids",
            value=params.allowed_token_ids,
        )


def check_budget(
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


def check_reasoning(marks: ReasoningMarks, tokens: ReasoningTokens, model: ModelConfig) -> None:
    """Raises RequestError for reasoning marks that the model cannot write."""
    for text, ids in ((marks.begin, tokens.begin), (marks.end, tokens.forced_end)):
        outside = outside_vocabulary(ids, model.vocab_size)
        if outside or not ids:
            raise RequestError(
                f"the reasoning mark {quoted(text)} must consist of tokens below "
                f"{model.vocab_size}, not {ids}; set --reasoning-parser to that of this model",
                parameter="thinking_token_budget",
            )
