"""Beam search for a request with `use_beam_search`: its parameters, and `BeamGeneration`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.beam_search import BeamSearchParams
from quire.errors import RequestError
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.server.generation.run import Deadline, Generation, Submission
from quire.server.json_pieces import check_wanted
from quire.server.requests.limits import params_in_room
from quire.server.requests.prompts import check_bounds, sampling_params
from quire.server.requests.request import AnyRequest
from quire.server.served_model import ServedModel
from quire.server.work_threads import LARGE_SIZE

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput
    from quire.frontend.beam_search import BeamSearch
    from quire.frontend.online.online_requests import OnlineRequests


def beam_sampling_params(model: ServedModel, asked: AnyRequest) -> SamplingParams:
    """Parameters of the same request without beams, so that all its options are checked; `n` is the
    width. Raises RequestError."""
    check_bounds(asked, model.args)
    width: int = asked.sampling.get("n", 1)
    if width < 1:
        raise RequestError(f"n must be at least 1, got {width}.", parameter="n", value=width)
    params = sampling_params(model, alone(asked))
    params.n = width
    return params


def alone(asked: AnyRequest) -> AnyRequest:
    """The same for one sequence."""
    return replace(asked, sampling={**asked.sampling, "n": 1}, num_samples=None)


def beam_search_params(
    asked: AnyRequest, params: SamplingParams, max_model_len: int
) -> BeamSearchParams:
    """Converts the result of `beam_sampling_params`. Raises RequestError."""
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=max_model_len if params.max_tokens is None else params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        length_penalty=asked.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        structured_outputs=params.structured_outputs,
        skip_special_tokens=params.skip_special_tokens,
        stop=params.stop,
        watermarking=params.watermarking,
        allowed_token_ids=params.allowed_token_ids,
    )


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
    async def begin(cls, asked: Submission, beams: BeamSearchParams) -> BeamGeneration:
        """Admits all prompts or none. `asked` has the parameters that `beam_sampling_params` makes.
        Raises RequestError, CapacityError, EngineDeadError."""
        requests = asked.model.live_engine().requests
        size = sum(len(prompt.token_ids) // 16 + 64 for prompt in asked.prompts)
        searches = await asked.model.pool.run(size, _searches, asked, beams)
        num_tokens = sum(search.num_prompt_tokens for search in searches)
        requests.check_admission(len(searches) * beams.beam_width, num_tokens)
        generation = cls(asked.model, requests, asked.deadline, searches)
        generation.engine = asked.engine
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
        from quire.frontend.beam_begin import request_output_of

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


def _searches(asked: Submission, beams: BeamSearchParams) -> list[BeamSearch]:
    from quire.frontend.beam_begin import begin_search  # rarely used

    processor = asked.model.live_engine().input_processor
    max_model_len = asked.model.config.model.max_model_len
    searches = []
    for index, prompt in enumerate(asked.prompts):
        params_in_room(asked.params, len(prompt.token_ids), max_model_len)
        searches.append(
            begin_search(
                processor,
                f"{asked.request_id}-{index}",
                prompt.for_engine(),
                beams,
                num_logprobs=asked.params.logprobs,
                reasoning=asked.params.reasoning,
                width_name="n",
                options=asked.options,
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
