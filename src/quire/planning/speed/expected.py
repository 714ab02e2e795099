"""Expected speed of a model on this machine, for each possible format of its weights.

Called by `quire explain`. Weights are not read, so that a directory with only config.json is
enough: steps are timed with made-up weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from quire.config.engine_args import EngineArgs
from quire.config.quantization import MEANINGS
from quire.config.resolve import Usage
from quire.errors import BackendError, ConfigError, DoesNotFitError
from quire.planning.plan import EnginePlan, settle
from quire.planning.speed.timing import Sizes, StepTimer
from quire.planning.speed.work import Work, work_of_step

STREAMS = (1, 8, 32)
DRAFTS = (1, 3, 7)
_CONTEXT = 256
_PROMPT = 512
_LEAST_S = 0.2
"""Minimum duration for which steps of one size are repeated."""
_STEP_S = 0.0001
_REQUEST_S = 0.000005
"""Time of the engine's Python code per step, and per request of a step, outside the model. Measured
with a very small model, after the caches were emptied."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of one format, in tokens per second."""

    name: str
    """Value of `quantization`; the dtype if there is none."""
    weight_bytes: int
    streams: dict[int, float]
    """Total tokens per second, by the number of requests that generate at once."""
    prompt: float | None
    """None: it is not predicted."""
    work: dict[int, Work]
    """Work of a decoding step, by the number of requests."""
    prompt_work: Work
    drafts: dict[int, dict[int, float]]
    """By the number of requests, then of draft tokens of each: how many times as long as without
    them the step takes. Empty where they were not timed."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Results for all formats."""

    speeds: tuple[Speed, ...]
    left_out: tuple[tuple[str, str], ...]
    """Formats that are not possible here, and why."""
    context: int
    """Number of tokens of each request before the generated one."""
    prompt: int
    """Number of tokens of the prompt."""
    not_timed: str = ""
    """Reason for missing speeds; "" if there are speeds."""
    bytes_per_second: float = 0.0
    """The bandwidth of memory that bounds the speeds, where steps were not timed."""


def expected_speeds(args: EngineArgs, plan: EnginePlan, usage: Usage) -> Expected:
    """Time the format that `plan` settled and the other formats that these arguments allow.

    Takes about a second per format. On a device that says its bandwidth, nothing is timed: a step
    that generates cannot be faster than its weights, K and V are read.
    """
    sizes = _sizes(plan)
    if plan.config.model.pooling is not None:
        why = "only generation is timed, and this model gives vectors or classes"
        return Expected((), (), sizes.context, sizes.prompt, why)
    if plan.config.model.num_sources:
        why = "only texts are timed, and this model writes down speech"
        return Expected((), (), sizes.context, sizes.prompt, why)
    speeds: list[Speed] = []
    left_out: list[tuple[str, str]] = []
    rate = plan.facts.backend.bytes_per_second
    try:
        for name, other in _formats(args, plan, usage):
            if isinstance(other, EnginePlan):
                is_first = not speeds
                speeds.append(
                    bound_of(name, other, rate)
                    if rate
                    else speed_of(name, other, has_drafts=is_first)
                )
            else:
                left_out.append((name, str(other)))
    except BackendError as error:
        return Expected((), (), sizes.context, sizes.prompt, str(error))
    return Expected(
        tuple(speeds), tuple(left_out), sizes.context, sizes.prompt, bytes_per_second=rate
    )


def _formats(
    args: EngineArgs, plan: EnginePlan, usage: Usage
) -> Iterator[tuple[str, EnginePlan | DoesNotFitError]]:
    """Yield the plan of each format, or why it does not fit; the requested one first. A quantised
    or packed checkpoint has only its own format."""
    model = plan.config.model
    own = model.quantization or _shipped_name(plan) or model.dtype
    for quantization in dict.fromkeys((model.quantization, None, *MEANINGS)):
        if quantization == model.quantization:
            yield own, plan
            continue
        try:
            changed = replace(args, quantization=quantization)
            yield quantization or model.dtype, settle(changed, usage, plan.facts)
        except DoesNotFitError as error:
            yield quantization or model.dtype, error
        except ConfigError:  # the checkpoint or the backend does not support the format
            continue


def _shipped_name(plan: EnginePlan) -> str | None:
    """Return the format of most weights if the checkpoint is quantised, else None."""
    sizes: dict[str, int] = {}
    for param in plan.compiled.program.params():
        sizes[str(param.format)] = sizes.get(str(param.format), 0) + param.num_elements
    most = max(sizes, key=lambda name: sizes[name])
    return None if most == "dense" else most


class ExpectedRates:
    """Times steps of one plan on demand. Must be closed."""

    def __init__(self, plan: EnginePlan, least_s: float) -> None:
        """Repeat steps of one size for `least_s`. Raises BackendError if the backend cannot time
        steps."""
        self._prompt = _sizes(plan).prompt
        self._timer = StepTimer(plan.compiled, plan.facts.backend, _sizes(plan), least_s)

    def streams(self, count: int) -> float:
        """Return the total tokens per second of `count` requests that generate."""
        return count / (self._timer.decode_seconds(count) + _STEP_S + count * _REQUEST_S)

    def drafts(self, count: int, num_drafts: int) -> float:
        """Return the time of a step of `count` requests with `num_drafts` draft tokens each, as a
        multiple of that without them."""
        rest = _STEP_S + count * _REQUEST_S
        with_drafts = self._timer.draft_seconds(count, num_drafts) + rest
        return with_drafts / (self._timer.decode_seconds(count) + rest)

    def prompt(self) -> float:
        """Return the tokens per second of a prompt."""
        return self._prompt / (self._timer.prompt_seconds() + _STEP_S + _REQUEST_S)

    def close(self) -> None:
        """Free the memory."""
        self._timer.close()


def speed_of(name: str, plan: EnginePlan, *, has_drafts: bool = False) -> Speed:
    """Time the plan of one format. `has_drafts`: also steps with draft tokens.

    Raises BackendError if the backend cannot time steps.
    """
    backend, compiled, sizes = plan.facts.backend, plan.compiled, _sizes(plan)
    with closing(ExpectedRates(plan, _LEAST_S)) as rates:
        streams = {count: rates.streams(count) for count in STREAMS}
        prompt = rates.prompt()
        drafts = {
            count: {number: rates.drafts(count, number) for number in DRAFTS}
            for count in STREAMS
            if has_drafts and sizes.most_drafts
        }
    return Speed(
        name=name,
        weight_bytes=plan.needs.weight_bytes,
        streams=streams,
        prompt=prompt,
        work=_decode_work(plan),
        prompt_work=work_of_step(compiled, backend, 1, 0, sizes.prompt),
        drafts=drafts,
    )


def bound_of(name: str, plan: EnginePlan, bytes_per_second: float) -> Speed:
    """Bound the plan of one format by the bandwidth of memory."""
    sizes, work = _sizes(plan), _decode_work(plan)
    return Speed(
        name=name,
        weight_bytes=plan.needs.weight_bytes,
        streams={
            count: count * bytes_per_second / (one.weight_bytes + one.kv_bytes)
            for count, one in work.items()
        },
        prompt=None,
        work=work,
        prompt_work=work_of_step(plan.compiled, plan.facts.backend, 1, 0, sizes.prompt),
        drafts={},
    )


def _decode_work(plan: EnginePlan) -> dict[int, Work]:
    context, backend = _sizes(plan).context, plan.facts.backend
    return {count: work_of_step(plan.compiled, backend, count, context, 1) for count in STREAMS}


def _sizes(plan: EnginePlan) -> Sizes:
    longest = plan.config.model.max_model_len
    most_drafts = max(DRAFTS) if plan.config.scheduler.speculation is not None else 0
    context = min(_CONTEXT, longest - 1 - most_drafts)
    if context < 1:
        context, most_drafts = longest - 1, 0
    return Sizes(max(STREAMS), context, min(_PROMPT, longest - 1), most_drafts)
