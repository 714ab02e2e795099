"""The cost of a step as work grows: more requests, longer contexts, longer prompts.

    python bench/growth.py --model DIR [--option '{"quantization": "int8"}'] [--json F] [--svg F]

Drives the engine step by step in this process and takes the median of each size. Of every
step it also says how long the compute backend had it: the rest is Python's, which should
stay below 0.3 ms and 5 us for each request. A cliff in a curve is a bug.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from quire import EngineArgs, LLMEngine, SamplingParams
from quire.backends.base import StepBatch, StepOutput
from quire.bench import plot
from quire.worker.worker import Worker

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384)
_REQUEST_CONTEXT = 128
_STEPS = 12


@dataclass(frozen=True)
class Point:
    """One size, median of some steps."""

    size: int
    step_ms: float
    backend_ms: float
    prefill_tokens_per_s: float

    @property
    def python_ms(self) -> float:
        """Milliseconds of the step outside the backend."""
        return self.step_ms - self.backend_ms


class StepClock:
    """Adds up the time of the backend's steps."""

    seconds = 0.0


def timed_engine(args: EngineArgs) -> tuple[LLMEngine, StepClock]:
    """An engine whose steps are timed."""
    clock, original = StepClock(), Worker.step

    def step(worker: Worker, batch: StepBatch) -> StepOutput:
        begin = time.perf_counter()
        try:
            return original(worker, batch)
        finally:
            clock.seconds += time.perf_counter() - begin

    Worker.step = step  # type: ignore[method-assign]
    return LLMEngine.from_engine_args(args), clock


def measure(engine: LLMEngine, clock: StepClock, count: int, context: int) -> Point:
    """`count` requests with `context` tokens each: their prefill, then steps of one token each."""
    rng = random.Random(f"{count} {context}")
    high = min(7000, engine.model_config.vocab_size)
    # The first requests generate while the last ones' prompts are still being computed.
    room = engine.model_config.max_model_len - context
    params = SamplingParams(temperature=0, max_tokens=room, ignore_eos=True)
    for number in range(count):
        ids = [rng.randrange(high) for _ in range(context)]
        engine.add_request(f"r{number}", {"prompt_token_ids": ids}, params)
    started: set[str] = set()
    begin = time.perf_counter()
    while len(started) < count:
        started |= {output.request_id for output in engine.step()}
    prefill = count * context / (time.perf_counter() - begin)
    steps, backend = [], []
    for _ in range(_STEPS):
        before, begin = clock.seconds, time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - begin)
        backend.append(clock.seconds - before)
    engine.abort_request([f"r{number}" for number in range(count)])
    return Point(
        size=count if count > 1 else context,
        step_ms=1000 * statistics.median(steps),
        backend_ms=1000 * statistics.median(backend),
        prefill_tokens_per_s=prefill,
    )


def draw(requests: list[Point], contexts: list[Point], title: str) -> str:
    """Both curves per token, and the Python share, over a logarithmic axis."""

    def line(name: str, points: list[Point], value: Callable[[Point], float]) -> plot.Series:
        return plot.Series(name, [(math.log2(p.size), value(p)) for p in points])

    def labels(points: list[Point]) -> list[tuple[float, str]]:
        return [(math.log2(point.size), f"{point.size:,}") for point in points]

    panels = (
        ("A token, by requests at once", "ms", requests, lambda p: p.step_ms / p.size),
        ("Python's part of a step, by requests at once", "ms", requests, lambda p: p.python_ms),
        ("A token, by context of one request", "ms", contexts, lambda p: p.step_ms),
        ("Prompt tokens, by length of the prompt", "per s", contexts,
         lambda p: p.prefill_tokens_per_s),
    )  # fmt: skip
    parts = [plot.text(20, 32, title, size=16, bold=True)]
    for number, (name, unit, points, value) in enumerate(panels):
        box = plot.Box(60 + (number % 2) * 480, 90 + (number // 2) * 230, 400, 140)
        parts.append(plot.line_chart(box, name, unit, [line("", points, value)], labels(points)))
    return plot.document(980, 540, *parts)


def main() -> int:
    """Measures everything that the model's context allows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="checkpoint directory; the bundled model by default")
    parser.add_argument("--option", default="{}", metavar="JSON", help="engine arguments")
    parser.add_argument("--max-requests", type=int, default=REQUESTS[-1])
    parser.add_argument("--max-context", type=int, default=CONTEXTS[-1])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--svg", metavar="FILE")
    args = parser.parse_args()
    longest = args.max_context + _STEPS + 2
    settings = {
        "model": args.model, "enable_prefix_caching": False, "disable_log_stats": True,
        "speculation": False,
        "max_num_seqs": args.max_requests, "max_model_len": longest, **json.loads(args.option),
    }  # fmt: skip
    engine, clock = timed_engine(EngineArgs(**settings))
    measure(engine, clock, 2, 16)
    requests = [
        measure(engine, clock, n, _REQUEST_CONTEXT) for n in REQUESTS if 1 < n <= args.max_requests
    ]
    contexts = [measure(engine, clock, 1, n) for n in CONTEXTS if n <= args.max_context]
    one = next(point for point in contexts if point.size == _REQUEST_CONTEXT)
    requests.insert(0, Point(1, one.step_ms, one.backend_ms, one.prefill_tokens_per_s))
    engine.shutdown()
    for title, points in (("requests", requests), ("context", contexts)):
        print(f"\n{title:>10} {'step ms':>10} {'backend':>10} {'python':>10} {'prefill tok/s':>14}")
        for p in points:
            print(
                f"{p.size:>10} {p.step_ms:>10.2f} {p.backend_ms:>10.2f} {p.python_ms:>10.2f} "
                f"{p.prefill_tokens_per_s:>14.0f}"
            )
    if args.json:
        result = {
            "requests": [asdict(p) for p in requests],
            "contexts": [asdict(p) for p in contexts],
        }
        Path(args.json).write_text(json.dumps({"settings": settings, **result}, indent=1))
    if args.svg:
        name = Path(args.model).name if args.model else "bundled model"
        Path(args.svg).write_text(draw(requests, contexts, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
