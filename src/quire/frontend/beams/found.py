"""Converts the results of a beam search to the forms that callers get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.beam_search import BeamSearchOutput, BeamSearchSequence
from quire.frontend.beams.search import Beam, BeamSearch
from quire.outputs import CompletionOutput, FlatLogprobs, Logprob, RequestOutput

if TYPE_CHECKING:
    from quire.tokenizer import Tokenizer


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
                orig_prompt=prompt,
                tokens=ids,
                logprobs=logprobs,
                lora_request=search.base.lora_request,
                cum_logprob=beam.cum_logprob,
                text=text,
                finish_reason=beam.finish_reason,
                stop_reason=beam.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)


def request_output_of(search: BeamSearch, tokenizer: Tokenizer | None) -> RequestOutput:
    """The final output of a request, with one completion for each sequence."""
    base = search.base
    return RequestOutput(
        request_id=base.request_id,
        prompt=base.prompt,
        prompt_token_ids=base.prompt_token_ids,
        prompt_logprobs=None,
        outputs=[
            _completion(search, index, beam, tokenizer) for index, beam in enumerate(search.best())
        ],
        finished=True,
        lora_request=base.lora_request,
        num_cached_tokens=search.num_cached_tokens,
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
    prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": base.prompt_token_ids}
    if base.prompt is not None:
        prompt["prompt"] = base.prompt
    if (salt := base.core_requests[0].cache_salt) is not None:
        prompt["cache_salt"] = salt
    return prompt
