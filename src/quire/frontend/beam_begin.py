"""The beams of a request at their beginning, and those that were found at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from quire.config.records import ModelConfig
from quire.errors import RequestError
from quire.forbidden_tokens import ForbiddenTokens
from quire.frontend.arguments import PLAIN, RequestOptions
from quire.frontend.beam_search import Beam, BeamSearch, StopStrings
from quire.frontend.request_record import output_of
from quire.inputs import PromptType
from quire.outputs import CompletionOutput, FlatLogprobs, Logprob, RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.reasoning.marks import ReasoningMarks

if TYPE_CHECKING:
    from quire.frontend.inputs.input_processor import InputProcessor
    from quire.tokenizer import Tokenizer


def begin_search(
    processor: InputProcessor,
    request_id: str,
    prompt: PromptType,
    params: BeamSearchParams,
    *,
    num_logprobs: int | None = None,
    reasoning: ReasoningMarks | None = None,
    width_name: str = "beam_width",
    options: RequestOptions = PLAIN,
) -> BeamSearch:
    """Create the search of a prompt, before its first step. Raises RequestError, and TypeError for
    parameters of another type.

    `num_logprobs`: log-probabilities to keep at each position; None: none; -1: the whole
    vocabulary. `reasoning`: marks of the reasoning before a grammar applies; None: those of the
    engine's options. `width_name`: the name that the caller's API gives to the beam width.
    """
    if not isinstance(params, BeamSearchParams):
        raise TypeError(f"params must be BeamSearchParams, but got {type(params).__name__}")
    params.verify()
    model, allowed = processor.model_config, params.allowed_token_ids
    num_asked = None
    if allowed is None:
        num_asked = _num_asked(params.beam_width, num_logprobs, model, width_name)
    never = model.never_generated or ForbiddenTokens()
    most_forbidden = len({word[-1] for word in never.words} | never.at_first(0))
    one_token = SamplingParams(
        logprobs=num_asked,
        logprob_token_ids=allowed,
        allowed_token_ids=allowed,
        max_tokens=1,
        temperature=params.temperature,
        seed=0,  # the sampled token is not used
        detokenize=False,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=params.structured_outputs,
        ignore_eos=params.ignore_eos and params.structured_outputs is not None,
        skip_clone=True,
    )
    if reasoning is not None:
        one_token.mark_reasoning(reasoning)
    base = processor.process(request_id, prompt, one_token, options)
    if most_forbidden and num_asked not in (None, -1):
        # The best tokens may all be forbidden ones; users' requests have the limit max_logprobs.
        for one in (base.params, *(core.sampling_params for core in base.core_requests)):
            one.logprobs = min(num_asked + most_forbidden, model.vocab_size)
    room = model.max_positions - base.num_virtual_tokens - len(base.prompt_token_ids)
    stops = params.stop if isinstance(params.stop, list) else []
    tokenizer = processor.tokenizer
    if stops and tokenizer is None:
        message = "stop strings require a tokenizer: start without skip_tokenizer_init"
        raise RequestError(message, parameter="stop", value=stops)
    return BeamSearch(
        base,
        params,
        max_tokens=min(params.max_tokens, room),
        eos_token_ids=_ends(processor),
        never_generated=never,
        keeps_logprobs=num_logprobs is not None,
        stop_strings=(
            StopStrings(stops, tokenizer, skip_special=params.skip_special_tokens)
            if stops and tokenizer is not None
            else None
        ),
    )


def _ends(processor: InputProcessor) -> set[int]:
    """The end-of-sequence tokens of the tokenizer and of the model."""
    own = set() if processor.eos_token_id is None else {processor.eos_token_id}
    return own | {*processor.model_config.eos_token_ids}


def _num_asked(width: int, num_logprobs: int | None, model: ModelConfig, name: str) -> int:
    """The number of log-probabilities of each step. Raises RequestError if that is too many."""
    _check_width(width, model, name)
    return -1 if num_logprobs == -1 else max(min(2 * width, model.vocab_size), num_logprobs or 0)


def _check_width(width: int, model: ModelConfig, name: str) -> None:
    """Raises RequestError if the width needs too many log-probabilities. Each beam offers twice as
    many tokens as there are beams, so that enough beams continue even if all could end."""
    allowed = model.vocab_size if model.max_logprobs == -1 else model.max_logprobs
    wanted = min(2 * width, model.vocab_size)
    if wanted > allowed:
        raise RequestError(
            f"{name} {width} needs the log-probabilities of 2 x {width} = {2 * width} tokens at "
            f"each step, more than max_logprobs {allowed}. Choose a {name} of at most "
            f"{allowed // 2}, or start the engine with a max_logprobs of {2 * width}.",
            parameter=name,
            value=width,
        )


def sequences_of(search: BeamSearch, tokenizer: Tokenizer | None) -> BeamSearchOutput:
    """The result of `LLM.beam_search`: whole sequences, including the prompt."""
    prompt = _prompt(search)
    skips = search.params.skip_special_tokens
    sequences = []
    for beam in search.best():
        ids = beam.token_ids
        text = None if tokenizer is None else tokenizer.decode(ids, skip_special_tokens=skips)
        logprobs = [
            {one.token_id: Logprob(one.logprob, one.rank) for one in candidates}
            for candidates in beam.candidates()
        ]
        sequences.append(
            BeamSearchSequence(
                prompt,
                ids,
                logprobs,
                search.base.options.lora,
                cum_logprob=beam.cum_logprob,
                text=text,
                finish_reason=beam.finish_reason,
                stop_reason=beam.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)


def request_output_of(search: BeamSearch, tokenizer: Tokenizer | None) -> RequestOutput:
    """The final output of a request, with one completion for each sequence."""
    completions = [
        _completion(search, index, beam, tokenizer) for index, beam in enumerate(search.best())
    ]
    return output_of(
        search.base, completions, finished=True, num_cached_tokens=search.num_cached_tokens
    )


def _completion(
    search: BeamSearch, index: int, beam: Beam, tokenizer: Tokenizer | None
) -> CompletionOutput:
    params = search.params
    token_ids = shown = beam.token_ids[search.num_prompt_tokens :]
    keeps, text = params.include_stop_str_in_output, ""
    if isinstance(beam.stop_reason, int):
        shown = token_ids[:-1]
        token_ids = token_ids if keeps else shown
    if search.stop_strings is not None and isinstance(beam.stop_reason, str):
        prompt = search.base.prompt_token_ids
        text = search.stop_strings.cut(prompt, token_ids, beam.stop_reason, keeps=keeps)
    elif tokenizer is not None:
        text = tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=token_ids,
        cumulative_logprob=beam.cum_logprob,
        logprobs=_flat(beam, token_ids),
        finish_reason=beam.finish_reason,
        stop_reason=beam.stop_reason,
    )


def _flat(beam: Beam, token_ids: list[int]) -> FlatLogprobs | None:
    """Log-probabilities per token: its own first, then the best ones in order; None if not kept."""
    if beam.history is None:
        return None
    flat = FlatLogprobs()
    for token_id, candidates in zip(token_ids, beam.candidates(), strict=False):
        own = next(one for one in candidates if one.token_id == token_id)
        entries = [own, *(one for one in candidates if one is not own)]
        flat.append_fast(*zip(*entries, strict=True))
    return flat


def _prompt(search: BeamSearch) -> dict[str, Any]:
    base = search.base
    optional = {"prompt": base.prompt, "cache_salt": base.core_requests[0].scope.salt}
    given = {name: value for name, value in optional.items() if value is not None}
    return {"type": "token", "prompt_token_ids": base.prompt_token_ids, **given}
