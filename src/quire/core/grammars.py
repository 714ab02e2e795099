"""`Grammars`: lets requests with a grammar wait for masks, and gives plans the masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.core.capability import Capability, Passed
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulePlan
from quire.reasoning.marks import ReasoningPassage
from quire.structured.manager import StructuredOutputManager

if TYPE_CHECKING:
    from quire.scheduler import Scheduler

_IDLE_WAIT_S = 0.01
"""Seconds that a step waits for a grammar if there is nothing else to do."""
_SHARE_FOR_MASKS = 0.02
"""Share of a step's time that the next step may wait for masks."""


class Grammars(Capability):
    """Connects the scheduler's requests with a `StructuredOutputManager`."""

    is_active = False
    needed_for = "structured_outputs"

    def __init__(self, manager: StructuredOutputManager, scheduler: Scheduler) -> None:
        self._manager = manager
        self._scheduler = scheduler

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        return {"prepare_grammars": self._manager.prepare}

    def advance(self, *, is_idle: bool) -> Passed:
        return Passed(failed=self._take_news(_IDLE_WAIT_S if is_idle else 0.0))

    def begin(self, request: EngineCoreRequest) -> None:
        params = request.sampling_params
        assert params.structured_outputs is not None
        self._manager.add(
            request.request_id,
            params.structured_outputs,
            tenant=request.scope.tenant,
            ignore_eos=params.ignore_eos,
            passage=_passage(request),
            begun=_begun(request),
        )
        self.is_active = True

    def complete(self, plan: SchedulePlan) -> None:
        if plan.structured_output_request_ids:
            masks = self._manager.masks(plan.structured_output_request_ids, plan.draft_token_ids)
            plan.structured_output_request_ids = [*masks]
            plan.grammar_bitmask = [*masks.values()]

    def follow(self, outputs: EngineCoreOutputs, step_s: float) -> None:
        """Computes the masks that follow the tokens of a step. Masks that would delay other
        requests too much are completed in a later step."""
        manager, states = self._manager, self._scheduler.states
        has_others = len(states.by_id) > manager.num_requests
        manager.run_masks(_SHARE_FOR_MASKS * step_s, has_others=has_others)
        news = self._take_news(0.0)
        if news:
            outputs.outputs += news
            if outputs.stats is not None:
                states.recount(outputs.stats)
        self.abort([one.request_id for one in outputs.outputs if one.finish_reason is not None])

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._manager.forget(request_id)
        self.is_active = self._manager.num_requests > 0

    def shutdown(self) -> None:
        self._manager.shutdown()

    def _take_news(self, timeout_s: float) -> list[EngineCoreOutput]:
        """Lets requests start or continue if their grammars or masks are ready; ends requests whose
        grammars failed. Waits up to `timeout_s` for the first. Returns outputs."""
        scheduler, outputs = self._scheduler, list[EngineCoreOutput]()
        for news in self._manager.take_news(timeout_s):
            if news.error is None:
                scheduler.grammar_is_ready(news.request_id)
            else:
                unmet = news.is_unmet
                outputs.append(
                    scheduler.end_with_error(news.request_id, news.error, is_unmet=unmet)
                )
        return outputs


def _passage(request: EngineCoreRequest) -> ReasoningPassage | None:
    """The reasoning passage after which the request's grammar begins; None: it begins at once."""
    marks, prompt = request.reasoning, request.prompt_token_ids
    if marks is None or marks.is_in_grammar:
        return None
    end = len(prompt) - request.num_reply_tokens
    return ReasoningPassage(marks, prompt[:end], end)


def _begun(request: EngineCoreRequest) -> list[int]:
    """The tokens at the end of the prompt that the grammar must accept first."""
    prompt = request.prompt_token_ids
    return prompt[len(prompt) - request.num_reply_tokens :]
