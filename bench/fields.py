"""The cost of sampling parameters in a step.

    python bench/fields.py --model DIR [--requests 32] [--rounds 5] [--option '{"dtype": "auto"}']

All kinds of requests are measured in turn, in each round, in one engine. Prints the median step of
each kind, and the median over the rounds of its ratio to the step of the kind without fields: of
its time, and of its processor time, which a busy machine changes less. Only steps count in which
every request had a token; `full` is how many did. A JSON schema may put off a request by a step,
and gives it several tokens in one where it leaves no choice, which are computed like others.
Where every second request has a schema, steps count in which all others had a token: what a schema
costs its neighbours. `tokens` are of each request with the fields, in a step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from quire import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from quire.structured.params import StructuredOutputsParams

_PROMPT_TOKENS = 128
_STEPS = 24
"""With a token of every request; twice as many are tried."""
_MAX_TOKENS = 8 * _STEPS
_WITHOUT = "none"
_ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
_SCHEMA = {"type": "array", "items": _ITEM}
"""Without a bound, so that no text ends early."""
_INTEGERS = {"type": "array", "items": {"type": "integer"}}
"""The same, and no token is the only one allowed: what masks alone cost."""


@dataclass(frozen=True)
class Kind:
    """Requests with these fields and a temperature of 1."""

    fields: dict[str, Any]
    has_neighbours: bool = False
    """Whether every second request has no fields; only those without fields are measured."""

    def fields_of(self, number: int) -> dict[str, Any]:
        """Return the fields of request `number`."""
        return {} if self.has_neighbours and number % 2 else self.fields

    def measured(self, count: int) -> list[str]:
        """Ids of the requests that must have a token in a step."""
        first, step = (1, 2) if self.has_neighbours else (0, 1)
        return [f"r{number}" for number in range(first, count, step)]

    def having(self, count: int) -> list[str]:
        """Ids of the requests with the fields."""
        return [f"r{number}" for number in range(0, count, 2 if self.has_neighbours else 1)]


def kinds(vocab_size: int) -> dict[str, Kind]:
    """Each kind of request."""
    schema = {"structured_outputs": StructuredOutputsParams(json=_SCHEMA)}
    integers = {"structured_outputs": StructuredOutputsParams(json=_INTEGERS)}
    rng = random.Random(1)
    bias = {rng.randrange(vocab_size): rng.uniform(-5, 5) for _ in range(100)}
    return {
        _WITHOUT: Kind({}),
        "top_p 0.95, top_k 20": Kind({"top_p": 0.95, "top_k": 20}),
        "three penalties, 100 biases": Kind({
            "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
            "logit_bias": bias,
        }),
        "logprobs 5": Kind({"logprobs": 5}),
        "a JSON schema": Kind(schema),
        "a schema in every second": Kind(schema, has_neighbours=True),
        "a schema of integers": Kind(integers),
        "integers in every second": Kind(integers, has_neighbours=True),
    }  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """The median of the steps in which every request had a token."""

    ms: float
    processor_ms: float
    full: float
    """The share of these steps."""
    tokens: float
    """Tokens per request and step; more than 1 if a grammar leaves no choice."""


def measure(engine: LLMEngine, count: int, kind: Kind) -> Steps:
    """Steps of `count` requests that generate."""
    rng = random.Random(2)
    high = engine.model_config.vocab_size
    for number in range(count):
        ids = [rng.randrange(high) for _ in range(_PROMPT_TOKENS)]
        params = SamplingParams(
            temperature=1.0, seed=number, max_tokens=_MAX_TOKENS, ignore_eos=True,
            **kind.fields_of(number),
        )  # fmt: skip
        engine.add_request(f"r{number}", {"prompt_token_ids": ids}, params)
    measured, having = {*kind.measured(count)}, kind.having(count)
    lengths: dict[str, int] = {}
    while len(lengths) < count:
        lengths |= _lengths(engine.step())
    steps: list[tuple[float, float]] = []
    num_steps, num_before = 0, sum(map(lengths.__getitem__, having))
    while len(steps) < _STEPS and num_steps < 2 * _STEPS:
        num_steps += 1
        begin, begin_cpu = time.perf_counter(), time.process_time()
        outputs = engine.step()
        took = (time.perf_counter() - begin, time.process_time() - begin_cpu)
        found = _lengths(outputs)
        lengths |= found
        if found.keys() >= measured:
            steps.append(took)
    engine.abort_all()
    if not steps:
        raise SystemExit("no step had a token of every request")
    seconds, processor_s = (statistics.median(each) for each in zip(*steps, strict=True))
    num_tokens = sum(map(lengths.__getitem__, having)) - num_before
    tokens = num_tokens / num_steps / len(having)
    return Steps(1000 * seconds, 1000 * processor_s, len(steps) / num_steps, tokens)


def _lengths(outputs: list[RequestOutput]) -> dict[str, int]:
    """Numbers of tokens of a step's requests."""
    return {output.request_id: len(output.outputs[0].token_ids) for output in outputs}


def main() -> int:
    """Measures all kinds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="checkpoint directory; the bundled model by default")
    parser.add_argument("--option", default="{}", metavar="JSON", help="engine arguments")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=[], help="parts of names of kinds")
    args = parser.parse_args()
    settings = {
        "model": args.model, "enable_prefix_caching": False, "disable_log_stats": True,
        "speculation": False,
        "max_num_seqs": args.requests, "max_model_len": _PROMPT_TOKENS + _MAX_TOKENS,
        **json.loads(args.option),
    }  # fmt: skip
    engine = LLMEngine.from_engine_args(EngineArgs(**settings))
    chosen = {
        name: kind
        for name, kind in kinds(engine.model_config.vocab_size).items()
        if name == _WITHOUT or not args.kinds or any(part in name for part in args.kinds)
    }
    found: dict[str, list[Steps]] = {name: [] for name in chosen}
    for number in range(args.rounds + 1):
        for name, kind in chosen.items():
            steps = measure(engine, args.requests, kind)
            if number:  # the first round warms up
                found[name].append(steps)
        print(f"round {number} of {args.rounds}", file=sys.stderr)
    engine.shutdown()
    heads = ("step ms", "ratio", "cpu ms", "ratio", "full", "tokens")
    print(f"{'fields':>28}" + "".join(f"{head:>9}" for head in heads))
    for name, values in found.items():
        pairs = list(zip(values, found[_WITHOUT], strict=True))
        numbers = (
            statistics.median(one.ms for one in values),
            statistics.median(one.ms / none.ms for one, none in pairs),
            statistics.median(one.processor_ms for one in values),
            statistics.median(one.processor_ms / none.processor_ms for one, none in pairs),
            statistics.median(one.full for one in values),
            statistics.median(one.tokens for one in values),
        )
        print(f"{name:>28}" + "".join(f"{number:>9.3f}" for number in numbers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
