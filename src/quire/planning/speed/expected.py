"""The speed to expect here of a model, in each format that its weights may have.

Called by `quire explain`. Weights are not read, so that a directory with config.json alone is
enough: steps are timed with made-up ones.
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
_CONTEXT = 256
_PROMPT = 512
_LEAST_S = 0.2
"""Steps of one size are repeated for so long."""
_STEP_S = 0.0001
_REQUEST_S = 0.000005
"""What the engine takes of a step beside the model, in Python: each step, and for each request in
it. From steps of a model that takes next to nothing, and a cache that a large one has emptied."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one format. Tokens per second."""

    name: str
    """What `quantization` would be; the dtype where it is left out."""
    weight_bytes: int
    streams: dict[int, float]
    """By the number of requests that generate at once: tokens of all of them together."""
    prompt: float
    work: dict[int, Work]
    """Of a step with so many requests."""
    prompt_work: Work


@dataclass(frozen=True, slots=True)
class Expected:
    """For all formats."""

    speeds: tuple[Speed, ...]
    left_out: tuple[tuple[str, str], ...]
    """Formats that cannot be had here, and why."""
    context: int
    """Tokens that each request has before the one that it generates."""
    prompt: int
    """Tokens of the prompt."""
    not_timed: str = ""
    """Why there are no speeds, if there are none."""


def expected_speeds(args: EngineArgs, plan: EnginePlan, usage: Usage) -> Expected:
    """Of what `plan` settled, and of the other formats that these arguments could name.

    Takes about a second for each.
    """
    sizes = _sizes(plan)
    speeds, left_out = [], []
    try:
        for name, other in _formats(args, plan, usage):
            if isinstance(other, EnginePlan):
                speeds.append(speed_of(name, other))
            else:
                left_out.append((name, str(other)))
    except BackendError as error:
        return Expected((), (), sizes.context, sizes.prompt, str(error))
    return Expected(tuple(speeds), tuple(left_out), sizes.context, sizes.prompt)


def _formats(
    args: EngineArgs, plan: EnginePlan, usage: Usage
) -> Iterator[tuple[str, EnginePlan | DoesNotFitError]]:
    """The plan of each format, or why it does not fit; the asked one first. A checkpoint that is
    quantised, or packed, has no other than its own."""
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
        except ConfigError:  # the checkpoint or the backend has no such format
            continue


def _shipped_name(plan: EnginePlan) -> str | None:
    """The format of most weights, if the checkpoint holds them quantised."""
    sizes: dict[str, int] = {}
    for param in plan.compiled.program.params():
        sizes[str(param.format)] = sizes.get(str(param.format), 0) + param.num_elements
    most = max(sizes, key=lambda name: sizes[name])
    return None if most == "dense" else most


class ExpectedRates:
    """Of the plan of one format: times steps when asked. To be closed."""

    def __init__(self, plan: EnginePlan, least_s: float) -> None:
        """Steps of one size are repeated for `least_s`. Raises BackendError where the backend does
        not time steps."""
        self._prompt = _sizes(plan).prompt
        self._timer = StepTimer(plan.compiled, plan.facts.backend, _sizes(plan), least_s)

    def streams(self, count: int) -> float:
        """Tokens per second of `count` requests that generate, together."""
        return count / (self._timer.decode_seconds(count) + _STEP_S + count * _REQUEST_S)

    def prompt(self) -> float:
        """Tokens per second of a prompt."""
        return self._prompt / (self._timer.prompt_seconds() + _STEP_S + _REQUEST_S)

    def close(self) -> None:
        """Frees its memory."""
        self._timer.close()


def speed_of(name: str, plan: EnginePlan) -> Speed:
    """Of the plan of one format. Raises BackendError where the backend does not time steps."""
    backend, compiled, sizes = plan.facts.backend, plan.compiled, _sizes(plan)
    with closing(ExpectedRates(plan, _LEAST_S)) as rates:
        streams = {count: rates.streams(count) for count in STREAMS}
        prompt = rates.prompt()
    return Speed(
        name=name,
        weight_bytes=plan.needs.weight_bytes,
        streams=streams,
        prompt=prompt,
        work={n: work_of_step(compiled, backend, n, sizes.context, 1) for n in STREAMS},
        prompt_work=work_of_step(compiled, backend, 1, 0, sizes.prompt),
    )


def _sizes(plan: EnginePlan) -> Sizes:
    longest = plan.config.model.max_model_len
    return Sizes(max(STREAMS), min(_CONTEXT, longest - 1), min(_PROMPT, longest - 1))
