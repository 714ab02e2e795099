"""The time of a step's kernels, by the kind of op, without the engine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from tools.gpu_check.launches import fill, launch_seconds
from tools.gpu_check.shapes import planned, upload_random

from quire.backends.base import StepBatch
from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.packing import packed_bytes
from quire.backends.cuda.plan import Plan
from quire.planning.compile_plan import CompilePlan
from quire.planning.speed.timing import blocks_needed, decode_step, prompt_step
from quire.planning.speed.work import Work, work_of_step
from quire.program import Linear, Logits

_RESULT = "Logits"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a step's launches."""

    of_step: float
    by_op: dict[str, float]
    is_recorded: bool
    num_launches: int
    work: Work


class Profile:
    """A model on the device, of which single steps run."""

    def __init__(
        self, device: Device, model: str, most_requests: int, context: int, prompt: int
    ) -> None:
        """Takes memory for so many requests, with random weights, K and V."""
        self._device, self._context, self._prompt = device, context, prompt
        tokens = max(prompt, most_requests)
        engine, compiled = planned(
            model, max_num_seqs=most_requests, max_num_batched_tokens=tokens,
            max_model_len=max(context + 16, prompt + 16), num_gpu_blocks_override=2048,
        )  # fmt: skip
        self._backend = engine.facts.backend
        blocks = max(
            blocks_needed(compiled.kv, most_requests, context + 1),
            blocks_needed(compiled.kv, 1, prompt),
        )
        self._compiled: CompilePlan = replace(compiled, kv=replace(compiled.kv, num_blocks=blocks))
        own = self._compiled
        self._plan = Plan(own.program, own.kv, own.options, device.facts)
        for memory in self._plan.memories:
            device.hold(memory)
        upload_random(self._plan, device)
        cache = self._plan.lowering.cache
        fill(device, cache.part(0, cache.num_bytes))

    @property
    def linear_bytes(self) -> int:
        """Bytes of the weights of all products."""
        dtype = self._compiled.options.dtype
        ops = (op for op in self._compiled.program.ops if isinstance(op, Linear | Logits))
        return sum(packed_bytes(op.weight, dtype) for op in ops)

    def decode(self, num_requests: int, least: float) -> Times:
        """A step with one token for each request."""
        own = self._compiled
        batch = decode_step(own.kv, num_requests, self._context, own.program.vocab_size)
        work = work_of_step(own, self._backend, num_requests, self._context, 1)
        return self._times(batch, work, least)

    def prefill(self, least: float) -> Times:
        """A step with one prompt."""
        own = self._compiled
        batch = prompt_step(own.kv, self._prompt, own.program.vocab_size)
        work = work_of_step(own, self._backend, 1, 0, self._prompt)
        return self._times(batch, work, least)

    def _times(self, batch: StepBatch, work: Work, least: float) -> Times:
        plan, device = self._plan, self._device
        buffer = plan.lowering.step_buffer
        step, integers = plan.lowering.arrays.step(batch, buffer.memory, buffer.begin)
        device.upload(buffer, integers)
        kinds: defaultdict[str, list[Launch]] = defaultdict(list)
        whole: list[Launch] = []
        emitted = [(type(op).__name__, emit(step)) for op, emit in plan.ops]
        for kind, actions in (*emitted, (_RESULT, plan.result.emit(step, 0, step.num_taken))):
            launches = [action for action in actions if isinstance(action, Launch)]
            kinds[kind] += launches
            whole += launches
        of_step, is_recorded = launch_seconds(device, whole, buffer, least)
        by_op = {
            kind: launch_seconds(device, launches, buffer, least / 4)[0]
            for kind, launches in kinds.items()
            if launches
        }
        return Times(of_step, by_op, is_recorded, len(whole), work)

    def close(self) -> None:
        """Gives the memory back."""
        for memory in self._plan.memories:
            self._device.release(memory)
