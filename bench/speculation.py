"""Measures speculative decoding: where replies repeat their input, and where none can be guessed.

    python bench/speculation.py --model DIR [--draft DIR] [--quantization int8]
        --peer vllm-ngram=/venvs/vllm/bin/python
        --option vllm-ngram='{"speculative_config": {"method": "ngram", "num_speculative_tokens": 8,
                              "prompt_lookup_min": 2, "prompt_lookup_max": 4}}'
        --peer llamacpp-lookup=/venvs/llamacpp/bin/python --option llamacpp-lookup='{"lookup": 10}'
        --server llamacpp='llama-server -m FILE.gguf --port {port} --spec-type ngram-mod'

Three parts, chosen by --parts; every round goes round all engines before the next begins:

- copy: forty tasks of `helpers/copy_tasks.py`, one stream, greedy: tokens per second of Quire
  without drafts, by default, with `suffix`, with a draft model, and of the peers: with the time of
  the prompts, and without it, which is the time of replies of one token. Texts of Quire must be the
  same in all its columns.
- free: texts at temperature 1.5 with 1, 8 and 32 streams: Quire by default relative to Quire
  without drafts. It must not be slower.
- formula: a proposer that is right at a set rate, relative to (1 + a) / t: a is the mean number of
  accepted drafts, t the time of a step with drafts in steps without.

Prints medians; writes JSON. Peers get the token ids of Quire's tokenizer, so all must have the same
vocabulary. MODEL may be a GGUF file, which llama-cpp-python reads too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.command_line import named_values
from helpers.copy_tasks import copy_tasks
from helpers.peer_process import Peer, PeerError, PeerSpec
from helpers.server_process import Server

from quire import LLM, SamplingParams
from quire.scheduler.drafting import drafting as drafting_module
from quire.scheduler.drafting.drafting import Drafting
from quire.scheduler.drafting.proposer import Proposal, Proposer
from quire.scheduler.request import Request

_PARTS = ("copy", "free", "formula")
_FORMULA_DRAFTS = 3


class SetRate(Proposer):
    """Guesses a known reply; each guess is right with the chance `rate`."""

    def __init__(self, reply: list[int], rate: float, vocab_size: int) -> None:
        self._reply, self._rate, self._vocab_size = reply, rate, vocab_size
        self._random = random.Random(1)

    def propose(self, request: Request, most: int) -> Proposal | None:
        """`_FORMULA_DRAFTS` tokens."""
        done = request.num_output_tokens
        ids = self._reply[done : done + min(most, _FORMULA_DRAFTS)]
        wrong = [self._random.random() >= self._rate for _ in ids]
        ids = [(one + bad) % self._vocab_size for one, bad in zip(ids, wrong, strict=True)]
        return Proposal(ids, 0) if ids else None

    def forget(self, request: Request) -> None:
        """Does nothing."""


class LlamaServer:
    """llama.cpp's server, asked for one reply at a time."""

    def __init__(self, command: str, log: Path, timeout_s: float) -> None:
        """Raises PeerError."""
        self._server = Server(command.split(), {}, log, timeout_s)

    def ask(self, prompts: list[list[int]], output_len: int) -> float:
        """Seconds that the replies took, one after the other."""
        self._server.resume()
        begin = time.perf_counter()
        for ids in prompts:
            body = {
                "prompt": ids, "n_predict": output_len, "temperature": 0, "ignore_eos": True,
                "cache_prompt": False,
            }  # fmt: skip
            request = urllib.request.Request(
                f"{self._server.url}/completion",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as answer:
                json.load(answer)
        seconds = time.perf_counter() - begin
        self._server.pause()
        return seconds

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


def main() -> int:
    """Runs the chosen parts."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "copy": measure_copies, "free": measure_free, "formula": measure_formula,
    }  # fmt: skip
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "model": args.model}
    for name in args.parts.split(","):
        results[name] = parts[name](args)
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=1))
    return 0


def measure_copies(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of each engine on the forty tasks."""
    with open_llm(args, speculation=False) as llm:
        tokenizer = llm.get_tokenizer()
        prompts = [list(tokenizer.encode(text)) for text in copy_tasks()][: args.tasks]
    _check_texts(args, prompts)
    whole: dict[str, list[float]] = {}
    generating: dict[str, list[float]] = {}
    engines: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="speculation-") as logs:
        try:
            for name, start in _starts(args, Path(logs)).items():
                try:
                    engines[name] = start()
                except PeerError as error:
                    print(f"{name}: {error}", file=sys.stderr)
            for number in range(args.rounds):
                names = [*engines]
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    first = sum(engines[name].ask([ids], 1) for ids in prompts)
                    seconds = sum(engines[name].ask([ids], args.length) for ids in prompts)
                    speed = len(prompts) * args.length / seconds
                    after = len(prompts) * (args.length - 1) / (seconds - first)
                    whole.setdefault(name, []).append(speed)
                    generating.setdefault(name, []).append(after)
                    print(f"copy, round {number + 1}: {name} {speed:.1f} tokens/s, "
                          f"{after:.1f} after the first token", flush=True)  # fmt: skip
        finally:
            for engine in engines.values():
                engine.close()
    medians = {name: statistics.median(values) for name, values in whole.items()}
    after_first = {name: statistics.median(values) for name, values in generating.items()}
    for name, value in medians.items():
        ratio, after = value / medians["quire-off"], after_first[name]
        gain = after / after_first["quire-off"]
        print(f"copy: {name:20} {value:8.1f} tokens/s, {ratio:.2f}x; "
              f"after the first token {after:8.1f}, {gain:.2f}x")  # fmt: skip
    return {"whole": medians, "after_first": after_first}


def _check_texts(args: argparse.Namespace, prompts: list[list[int]]) -> None:
    """Ends the run unless Quire writes the same tokens with and without drafts."""
    params = SamplingParams(temperature=0, max_tokens=args.length, ignore_eos=True)
    texts = []
    for options in ({"speculation": False}, *_quire_options(args).values()):
        with open_llm(args, **options) as llm:
            outputs = llm.generate([{"prompt_token_ids": one} for one in prompts], params)
        texts.append([one.outputs[0].token_ids for one in outputs])
    if any(one != texts[0] for one in texts):
        raise SystemExit("drafts have changed a text")


def _quire_options(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Arguments of Quire's columns, by name."""
    found: dict[str, dict[str, Any]] = {
        "quire-off": {"speculation": False},
        "quire": {"speculation": True},
        "quire-suffix": {"speculative_config": {"method": "suffix"}},
    }
    if args.draft:
        found["quire-model"] = {"speculative_config": {"model": args.draft}}
    return found


def _starts(args: argparse.Namespace, logs: Path) -> dict[str, Callable[[], Any]]:
    """Functions that start each engine, by name."""
    own = {"quantization": args.quantization} if args.quantization else {}
    options = {name: {**own, **more} for name, more in _quire_options(args).items()}
    pythons = dict.fromkeys(options, sys.executable) | named_values(args.peer, "--peer")
    for name, text in named_values(args.option, "--option").items():
        options[name] = json.loads(text)
    checkpoints = named_values(args.checkpoint, "--checkpoint")

    def peer(name: str) -> Peer:
        checkpoint = checkpoints.get(name, args.model)
        environment = {"QUIRE_LOG_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
        spec = PeerSpec(name, pythons[name], checkpoint, options.get(name, {}), environment)
        return Peer(spec, logs / f"{name}.log", args.timeout)

    def server(name: str, command: str) -> LlamaServer:
        return LlamaServer(command, logs / f"{name}.log", args.timeout)

    starts: dict[str, Callable[[], Any]] = {
        name: lambda name=name: peer(name)  # type: ignore[misc]
        for name in pythons
    }
    for name, command in named_values(args.server, "--server").items():
        starts[name] = lambda name=name, command=command: server(name, command)  # type: ignore[misc]
    return starts


def measure_free(args: argparse.Namespace) -> dict[str, Any]:
    """The speed by default relative to that without drafts, on text that cannot be guessed."""
    found: dict[str, float] = {}
    for quantization in args.formats.split(","):
        llms = [
            LLM(args.model, quantization=None if quantization == "none" else quantization,
                max_model_len=2048, enable_prefix_caching=False, speculation=is_on)
            for is_on in (False, True)
        ]  # fmt: skip
        for streams in (1, 8, 32):
            ratios = []
            for number in range(args.rounds + 1):
                order = (0, 1) if number % 2 else (1, 0)
                speeds = {i: _free_speed(llms[i], streams, number, args.length) for i in order}
                if number:  # the first round warms up
                    ratios.append(speeds[1] / speeds[0])
            name = f"{quantization}, {streams} streams"
            found[name] = statistics.median(ratios)
            print(f"free: {name}: {found[name]:.3f}x", flush=True)
        for llm in llms:
            llm.close()
    return found


def _free_speed(llm: LLM, streams: int, seed: int, length: int) -> float:
    chance = random.Random(seed)
    prompts = [[chance.randrange(100, 7000) for _ in range(64)] for _ in range(streams)]
    params = [
        SamplingParams(temperature=1.5, seed=i, max_tokens=length, ignore_eos=True)
        for i in range(streams)
    ]
    begin = time.perf_counter()
    llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    return streams * length / (time.perf_counter() - begin)


def measure_formula(args: argparse.Namespace) -> dict[str, Any]:
    """The gain of one stream for several rates, relative to (1 + a) / t."""
    length, found = args.length, {}
    reply = [random.Random(5).randrange(100, 7000) for _ in range(length)]
    params = SamplingParams(
        temperature=0, max_tokens=length, ignore_eos=True, trace_decode_token_ids=reply
    )
    drafting_module._best_counts = lambda candidates, *_: [len(one.token_ids) for one in candidates]
    with open_llm(args, speculation=False) as plain, open_llm(args) as llm:
        scheduler = llm.llm_engine.engine_core.scheduler

        def run(engine: LLM, rate: float | None) -> tuple[float, float]:
            """Seconds, and steps."""
            if rate is not None:
                proposer = SetRate(reply, rate, llm.llm_engine.vllm_config.model.vocab_size)
                scheduler.drafting = Drafting(scheduler.config.speculation, None, proposer)
            engine.llm_engine.add_request("0", {"prompt_token_ids": [1] * 16}, params)
            begin, steps = time.perf_counter(), 0
            while engine.llm_engine.has_unfinished_requests():
                engine.llm_engine.step()
                steps += 1
            return time.perf_counter() - begin, steps

        for rate in (0.3, 0.6, 0.9):
            shares = []
            for _ in range(args.rounds):
                without, steps = run(plain, None)
                all_wrong, wrong_steps = run(llm, 0.0)
                seconds, right_steps = run(llm, rate)
                t = (all_wrong / wrong_steps) / (without / steps)
                formula = (length / right_steps) / t
                shares.append((without / seconds) / formula)
            found[f"{rate:.0%}"] = statistics.median(shares)
            print(f"formula: {rate:.0%} right: {found[f'{rate:.0%}']:.3f} of (1 + a) / t")
    return found


def open_llm(args: argparse.Namespace, *, speculation: bool = True, **options: Any) -> LLM:
    """An engine of the model."""
    return LLM(
        args.model, quantization=args.quantization, max_model_len=2048,
        enable_prefix_caching=False, speculation=speculation, **options,
    )  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="checkpoint directory")
    add("--draft", help="checkpoint directory of a draft model")
    add("--quantization", help="format of Quire's weights in `copy` and `formula`")
    add("--formats", default="none,int8,int4", help="formats of the part `free`")
    add("--parts", default=",".join(_PARTS), help="names with commas between")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="an engine to run")
    add("--checkpoint", action="append", default=[], metavar="NAME=PATH", help="a peer's own")
    add("--option", action="append", default=[], metavar="NAME=JSON", help="engine arguments")
    add("--server", action="append", default=[], metavar="NAME=COMMAND", help="llama-server")
    add("--rounds", type=int, default=3)
    add("--length", type=int, default=128, help="tokens of a reply")
    add("--tasks", type=int, default=40, help="how many of the tasks")
    add("--timeout", type=float, default=900, help="seconds for a start or a reply")
    add("--json", metavar="FILE", help="write everything measured")
    args = parser.parse_args()
    if wrong := set(args.parts.split(",")) - {*_PARTS}:
        parser.error(f"--parts must be some of {', '.join(_PARTS)}, not {', '.join(wrong)}")
    if args.rounds < 1 or not 1 <= args.tasks <= 40:
        parser.error("--rounds must be at least 1, and --tasks from 1 to 40")
    args.model = os.path.abspath(args.model) if os.path.isdir(args.model) else args.model
    return args


if __name__ == "__main__":
    sys.exit(main())
