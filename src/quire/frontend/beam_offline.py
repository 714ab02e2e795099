"""The beam searches of one call of `LLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from quire.beam_search import BeamSearchOutput, BeamSearchParams
from quire.errors import RequestError, quoted
from quire.frontend.arguments import EngineInput, located
from quire.frontend.beam_begin import begin_search, sequences_of
from quire.frontend.beam_search import BeamSearch
from quire.frontend.offline.calls import CallOptions, Calls
from quire.frontend.offline.progress_bar import Progress, counted
from quire.frontend.offline.shared_loop import Ticket
from quire.inputs import PromptType
from quire.log import get_logger
from quire.outputs import RequestOutput
from quire.system.deferred_signals import deliver_signals

logger = get_logger(__name__)


def search_beams(
    calls: Calls,
    prompts: Sequence[PromptType],
    params: BeamSearchParams,
    options: CallOptions,
    use_tqdm: Progress,
    concurrency_limit: int | None,
) -> list[BeamSearchOutput]:
    """Search the best continuations of each prompt.

    All prompts are validated before any of them runs. Raises RequestError, EngineGenerateError if a
    step of a search failed, and ConfigError if only this thread could wake the engine up.
    """
    at_once = _checked_limit(concurrency_limit) or max(1, len(prompts))
    searches, engine, count = [], calls.engine, len(prompts)
    ids = [str(next(calls.request_counter)) for _ in prompts]
    each = zip(ids, prompts, options.each(count, engine), strict=True)
    for index, (request_id, prompt, its_options) in enumerate(each):
        with located("prompts", index, count):
            searches.append(
                begin_search(
                    engine.input_processor,
                    request_id,
                    prompt,
                    params,
                    num_logprobs=0,
                    options=its_options,
                )
            )
        deliver_signals()
    if use_tqdm and concurrency_limit is not None:
        logger.warning("The progress bar is not shown with a concurrency_limit.")
        use_tqdm = False
    if searches:
        engine.refuse_to_wait()
    for begin in range(0, len(searches), at_once):
        _run(calls, searches[begin : begin + at_once], use_tqdm)
    tokenizer = engine.tokenizer
    return [sequences_of(search, tokenizer) for search in searches]


def _run(calls: Calls, searches: Sequence[BeamSearch], use_tqdm: Progress) -> None:
    num_steps = max(search.num_steps_left for search in searches)
    with counted(range(num_steps), use_tqdm, "Beam search") as steps:
        for _ in steps:
            going = [search for search in searches if not search.is_done]
            if not going:
                break
            inputs = [search.inputs() for search in going]
            outputs = iter(_outputs(calls, [one for each in inputs for one in each]))
            for search, own in zip(going, inputs, strict=True):
                search.advance([next(outputs) for _ in own])


def _outputs(calls: Calls, inputs: Sequence[EngineInput]) -> list[RequestOutput]:
    tickets: list[Ticket] = []
    try:
        for request in inputs:
            tickets.append(Ticket(request.request_id, 1))
            calls.engine.add_input(request, tickets[-1])
            deliver_signals()
        return cast("list[RequestOutput]", calls.loop.collect(tickets, lambda _: None))
    except BaseException:
        calls.abort(tickets)
        raise


def _checked_limit(limit: object) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise RequestError(
            f"concurrency_limit must be an integer of at least 1, got {quoted(limit)}; leave it "
            "out to search all prompts at once",
            parameter="concurrency_limit",
            value=limit,
        )
    return limit
