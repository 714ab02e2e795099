"""One HTTP request's beam searches, one for each of its prompts, all in the same steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from quire.adapters import AnyAdapterRequest, as_arguments
from quire.beam_search import BeamSearchParams
from quire.frontend.beams.begin import begin_search
from quire.frontend.beams.found import request_output_of
from quire.frontend.beams.search import BeamSearch
from quire.outputs import RequestOutput
from quire.server.generation.limits import params_in_room
from quire.server.generation.prompts import PreparedPrompt
from quire.server.generation.run import Deadline, Generation
from quire.server.served_model import ServedModel
from quire.server.work_pool import LARGE_SIZE, check_wanted

if TYPE_CHECKING:
    from quire.frontend.inputs.input_processor import EngineInput
    from quire.frontend.online.online_requests import OnlineRequests
    from quire.params import SamplingParams


class BeamGeneration(Generation):
    """A generation in steps: each is a request of one token for each beam of each prompt.

    Admission is asked once, for all beams. The outputs come together, at the end.
    """

    def __init__(
        self,
        model: ServedModel,
        requests: OnlineRequests,
        deadline: Deadline,
        searches: Sequence[BeamSearch],
    ) -> None:
        super().__init__(model, requests, deadline)
        self._searches = searches

    @classmethod
    async def begin(
        cls,
        model: ServedModel,
        prompts: Sequence[PreparedPrompt],
        params: SamplingParams,
        request_id: str,
        *,
        beams: BeamSearchParams,
        priority: int,
        deadline: Deadline,
        trace_headers: Mapping[str, str] | None = None,
        adapter: AnyAdapterRequest | None = None,
        engine: int | None = None,
    ) -> BeamGeneration:
        """Admits all prompts or none. `params` has what is wanted of the reply, as
        `beam_sampling_params` makes them. Raises RequestError, CapacityError, EngineDeadError."""
        requests = model.live_engine().requests
        size = sum(len(prompt.token_ids) // 16 + 64 for prompt in prompts)
        searches = await model.pool.run(
            size,
            _searches,
            model,
            prompts,
            params,
            beams,
            request_id,
            priority,
            trace_headers,
            adapter,
        )
        num_tokens = sum(search.num_prompt_tokens for search in searches)
        requests.check_admission(len(searches) * beams.beam_width, num_tokens)
        generation = cls(model, requests, deadline, searches)
        generation.engine = engine
        try:
            await generation._submit([search.base for search in searches])
        except BaseException:
            generation.close()
            raise
        return generation

    async def outputs(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
        """One batch, when all searches are done. Raises as for any generation."""
        going = list(self._searches)
        while True:
            finals: dict[int, RequestOutput] = {}
            async for batch in super().outputs():
                finals.update(batch)
            if self._is_closed:
                return
            pool = self.model.pool
            going, inputs = await pool.run(_size(going), _advance, going, finals)
            if self._is_closed:
                return
            if not going:
                break
            await self._submit(inputs, is_admitted=True)
        yield await self.model.pool.run(_size(self._searches), self._found)

    def _found(self) -> list[tuple[int, RequestOutput]]:
        tokenizer = self.model.loaded_engine().tokenizer
        found = []
        for index, search in enumerate(self._searches):
            found.append((index, request_output_of(search, tokenizer)))
            check_wanted()
        return found


def _size(searches: Sequence[BeamSearch]) -> int:
    """The work of a step, as if it were not large: large work waits for its turn, and a search has
    had its turn."""
    return min(sum(search.size for search in searches), LARGE_SIZE)


def _searches(
    model: ServedModel,
    prompts: Sequence[PreparedPrompt],
    params: SamplingParams,
    beams: BeamSearchParams,
    request_id: str,
    priority: int,
    trace_headers: Mapping[str, str] | None,
    adapter: AnyAdapterRequest | None,
) -> list[BeamSearch]:
    """Validated, before their first steps. Raises RequestError."""
    processor = model.live_engine().input_processor
    max_model_len = model.config.model.max_model_len
    searches = []
    for index, prompt in enumerate(prompts):
        params_in_room(params, len(prompt.token_ids), max_model_len)
        searches.append(
            begin_search(
                processor,
                f"{request_id}-{index}",
                prompt.for_engine(),
                beams,
                num_logprobs=params.logprobs,
                reasoning=params.reasoning,
                width_name="n",
                priority=priority,
                trace_headers=trace_headers,
                **as_arguments(adapter),
            )
        )
        check_wanted()
    return searches


def _advance(
    going: Sequence[BeamSearch], finals: Mapping[int, RequestOutput]
) -> tuple[list[BeamSearch], list[EngineInput]]:
    """The searches that go on after a step, and the requests of their next one. `finals`: the
    step's outputs in the order of its requests."""
    left: list[BeamSearch] = []
    inputs: list[EngineInput] = []
    begin = 0
    for search in going:
        end = begin + search.num_beams
        search.advance([finals[place] for place in range(begin, end)])
        begin = end
        if not search.is_done:
            left.append(search)
            inputs += search.inputs()
        check_wanted()
    return left, inputs
