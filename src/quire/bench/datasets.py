"""Requests to measure with: random tokens, shared prefixes, ShareGPT files, JSONL of one's own,
traces of real traffic.

Called by `throughput` and `serve`. The sampling follows vLLM's benchmark of the same names,
random numbers included, so that both tools can be pointed at one server with one workload.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from quire.bench.timed_trace import TraceFormat, read_trace
from quire.config.declaration import argument
from quire.errors import ConfigError
from quire.units import GiB, format_bytes

if TYPE_CHECKING:
    from quire.tokenizer import Tokenizer

DatasetName = Literal["random", "prefix_repetition", "sharegpt", "custom", "timed_trace"]

_OF_FILES = ("sharegpt", "custom", "timed_trace")

_MAX_FILE_BYTES = 4 * GiB
_MAX_ADJUSTMENTS = 10
_MIN_TOKENS, _MAX_PROMPT_TOKENS, _MAX_TOTAL_TOKENS = 4, 1024, 2048
"""ShareGPT conversations outside these bounds are left out, as in vLLM's benchmark."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request to send: text or ids, its length in tokens, and how many tokens to ask for."""

    prompt: str | list[int]
    prompt_len: int
    output_len: int
    due_s: float | None = None
    """Seconds after the start at which it is sent; None: as the traffic's options say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetArgs:
    """Which requests are sent. Options that belong to another dataset have no effect."""

    dataset_name: DatasetName = argument("random", is_common=True)
    """Random tokens, random tokens with shared prefixes, a ShareGPT JSON file, JSONL lines
    `{"prompt": ..., "output_tokens": ...}`, or a trace of traffic, JSONL lines `{"timestamp": ...,
    "input_length": ..., "output_length": ..., "hash_ids": [...]}`."""
    dataset_path: str | None = argument(None, is_common=True)
    """The file, for sharegpt, custom and timed_trace."""
    num_prompts: int = argument(1000, is_common=True)
    """Requests to send."""
    seed: int = 0
    """Seed of the random generators."""
    input_len: int | None = None
    """Alias of the dataset's input length option."""
    output_len: int | None = None
    """Alias of the dataset's output length option."""
    random_input_len: int = argument(1024, is_common=True)
    """Tokens of a random prompt."""
    random_output_len: int = argument(128, is_common=True)
    """Tokens asked for after a random prompt."""
    random_range_ratio: float = 0.0
    """Spread of both lengths: uniform in [len * (1 - r), len * (1 + r)]."""
    random_prefix_len: int = 0
    """Number of shared prefix tokens of all random prompts, in addition to their own tokens."""
    prefix_repetition_prefix_len: int = 256
    """Tokens of each shared prefix."""
    prefix_repetition_suffix_len: int = 256
    """Tokens of each prompt after its prefix."""
    prefix_repetition_num_prefixes: int = 10
    """Number of different prefixes."""
    prefix_repetition_output_len: int = 128
    """Tokens asked for after each prompt."""
    sharegpt_output_len: int | None = None
    """Tokens asked for; None: as many as the recorded answer has."""
    custom_output_len: int | None = None
    """Tokens asked for; None: each line's output_tokens, or 256."""
    timed_trace_chunk_hash_size: int = 16
    """Tokens that a hash id of a trace stands for: 512 in Mooncake's, 16 in Qwen's."""
    timed_trace_sec_multiplier: float = 1.0
    """Seconds in one unit of a trace's times: 0.001 for milliseconds."""
    timed_trace_label_timestamp: str = "timestamp"
    """The field of a trace's lines that has the time."""
    timed_trace_label_input_length: str = "input_length"
    """The field that has the tokens of the prompt."""
    timed_trace_label_output_length: str = "output_length"
    """The field that has the tokens asked for."""
    timed_trace_label_hash_ids: str = "hash_ids"
    """The field that has the hash ids of the prompt's pieces."""
    self_timed: bool | None = None
    """Send the requests of a trace at their own times, which is the default; otherwise as
    --request-rate says."""
    disable_shuffle: bool = False
    """Keep the order of the file."""

    def __post_init__(self) -> None:
        if not 0 <= self.random_range_ratio < 1:
            raise ConfigError(
                f"--random-range-ratio must be in [0, 1), got {self.random_range_ratio}; try 0.2"
            )
        if self.num_prompts < 1:
            raise ConfigError(f"--num-prompts must be at least 1, got {self.num_prompts}")
        if self.dataset_name in _OF_FILES and self.dataset_path is None:
            raise ConfigError(f"--dataset-name {self.dataset_name} needs --dataset-path FILE")
        if self.dataset_name not in _OF_FILES and self.dataset_path is not None:
            raise ConfigError(
                f"--dataset-path is for {', '.join(_OF_FILES)}, not for {self.dataset_name}"
            )
        self._check_trace()

    def _check_trace(self) -> None:
        if self.self_timed is not None and self.dataset_name != "timed_trace":
            raise ConfigError("--self-timed is for --dataset-name timed_trace alone; leave it out")
        if self.timed_trace_chunk_hash_size < 1:
            raise ConfigError(
                "--timed-trace-chunk-hash-size must be at least 1, got "
                f"{self.timed_trace_chunk_hash_size}; try 16"
            )
        if not 0 < self.timed_trace_sec_multiplier < math.inf:
            raise ConfigError(
                "--timed-trace-sec-multiplier must be positive, got "
                f"{self.timed_trace_sec_multiplier}; try 0.001 for milliseconds"
            )


def load_requests(args: DatasetArgs, tokenizer: Tokenizer) -> list[SampleRequest]:
    """Return the requests in sending order. Raises ConfigError."""
    makers: dict[str, Callable[[DatasetArgs, Tokenizer], list[SampleRequest]]] = {
        "random": _random,
        "prefix_repetition": _prefix_repetition,
        "sharegpt": _sharegpt,
        "custom": _custom,
        "timed_trace": _timed_trace,
    }
    found = makers[args.dataset_name](args, tokenizer)
    if not found:
        raise ConfigError(f"{args.dataset_path}: holds no request that can be sent")
    return found


def _random(args: DatasetArgs, tokenizer: Tokenizer) -> list[SampleRequest]:
    rng = np.random.default_rng(args.seed)
    num_special = len(tokenizer.encode(""))
    input_len = max(0, (args.input_len or args.random_input_len) - num_special)
    output_len = args.output_len or args.random_output_len
    spread, count = args.random_range_ratio, args.num_prompts
    if args.random_prefix_len + math.floor(input_len * (1 - spread)) < 1:
        raise ConfigError("--random-input-len leaves no token for the prompt; try 128")
    low, high = math.floor(input_len * (1 - spread)), math.ceil(input_len * (1 + spread))
    input_lens = rng.integers(low, high + 1, size=count)
    low, high = math.floor(output_len * (1 - spread)), math.ceil(output_len * (1 + spread))
    output_lens = rng.integers(max(low, 1), max(high, 1) + 1, size=count)
    offsets = rng.integers(0, tokenizer.vocab_size, size=count)
    special = tokenizer.special_token_ids
    allowed = np.array([i for i in range(tokenizer.vocab_size) if i not in special])
    prefix = _prefix(tokenizer, allowed, args.random_prefix_len, rng)
    requests = []
    for index in range(count):
        steps = np.arange(int(input_lens[index]))
        own = allowed[(int(offsets[index]) + index + steps) % len(allowed)].tolist()
        target = len(prefix) + len(own)
        prompt, ids = fit_to_length(tokenizer, prefix + own, target, rng)
        requests.append(SampleRequest(prompt, len(ids) + num_special, int(output_lens[index])))
    return requests


def _prefix(
    tokenizer: Tokenizer, allowed: np.ndarray[Any, Any], length: int, rng: np.random.Generator
) -> list[int]:
    if length <= 0:
        return []
    ids = allowed[rng.integers(0, len(allowed), size=length)].tolist()
    return fit_to_length(tokenizer, ids, length, rng)[1]


def _prefix_repetition(args: DatasetArgs, tokenizer: Tokenizer) -> list[SampleRequest]:
    rng = np.random.default_rng(args.seed)
    each = args.num_prompts // args.prefix_repetition_num_prefixes
    if each == 0:
        raise ConfigError(
            f"--num-prompts {args.num_prompts} is fewer than the "
            f"{args.prefix_repetition_num_prefixes} prefixes of --prefix-repetition-num-prefixes"
        )
    output_len = args.output_len or args.prefix_repetition_output_len

    def piece(length: int) -> list[int]:
        ids = rng.integers(0, tokenizer.vocab_size, size=length).tolist()
        return fit_to_length(tokenizer, ids, length, rng)[1]

    requests = []
    for _ in range(args.prefix_repetition_num_prefixes):
        prefix = piece(args.prefix_repetition_prefix_len)
        for _ in range(each):
            ids = prefix + piece(args.prefix_repetition_suffix_len)
            requests.append(SampleRequest(tokenizer.decode(ids), len(ids), output_len))
    if not args.disable_shuffle:
        random.Random(args.seed).shuffle(requests)
    return requests


def _sharegpt(args: DatasetArgs, tokenizer: Tokenizer) -> list[SampleRequest]:
    path = Path(args.dataset_path or "")
    wanted = args.output_len or args.sharegpt_output_len
    try:
        entries = json.loads(_text(path))
        turns = [e["conversations"] for e in entries if len(e.get("conversations", ())) >= 2]
        pairs = [(str(turn[0]["value"]), str(turn[1]["value"])) for turn in turns]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(f"{path}: not a ShareGPT file: {error}") from None
    requests = []
    for prompt, answer in _shuffled(pairs, args):
        prompt_len = len(tokenizer.encode(prompt))
        output_len = wanted or len(tokenizer.encode(answer))
        is_long_enough = prompt_len >= _MIN_TOKENS and (wanted or output_len >= _MIN_TOKENS)
        is_short_enough = (
            prompt_len <= _MAX_PROMPT_TOKENS and prompt_len + output_len <= _MAX_TOTAL_TOKENS
        )
        if is_long_enough and is_short_enough:
            requests.append(SampleRequest(prompt, prompt_len, output_len))
        if len(requests) == args.num_prompts:
            break
    return _enough(requests, args)


def _custom(args: DatasetArgs, tokenizer: Tokenizer) -> list[SampleRequest]:
    wanted = args.output_len or args.custom_output_len
    lines = list(_json_lines(Path(args.dataset_path or "")))
    requests = []
    for prompt, own in _shuffled(lines, args)[: args.num_prompts]:
        output_len = wanted or own or 256
        requests.append(SampleRequest(prompt, len(tokenizer.encode(prompt)), output_len))
    return _enough(requests, args)


def _timed_trace(args: DatasetArgs, tokenizer: Tokenizer) -> list[SampleRequest]:
    path = Path(args.dataset_path or "")
    form = TraceFormat(
        args.timed_trace_chunk_hash_size,
        args.timed_trace_sec_multiplier,
        args.timed_trace_label_timestamp,
        args.timed_trace_label_input_length,
        args.timed_trace_label_output_length,
        args.timed_trace_label_hash_ids,
    )
    is_timed = args.self_timed is not False
    return [
        SampleRequest(
            each.token_ids,
            len(each.token_ids),
            args.output_len or each.output_len,
            each.at_s if is_timed else None,
        )
        for each in read_trace(_text(path), path, form, tokenizer, args.num_prompts)
    ]


def _json_lines(path: Path) -> Iterator[tuple[str, int | None]]:
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            own = record.get("output_tokens")
            yield str(record["prompt"]), None if own is None else int(own)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                f'{path}, line {number}: expected {{"prompt": ...}}: {error}'
            ) from None


def _shuffled(items: list[Any], args: DatasetArgs) -> list[Any]:
    if not args.disable_shuffle:
        random.Random(args.seed).shuffle(items)
    return items


def _enough(requests: list[SampleRequest], args: DatasetArgs) -> list[SampleRequest]:
    """Repeat the requests of a file that has fewer than requested."""
    if not requests:
        return []
    return [requests[i % len(requests)] for i in range(args.num_prompts)]


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise ConfigError(f"{path}: {format_bytes(size)} is too large for a dataset")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path {path}: {error}") from None


def fit_to_length(
    tokenizer: Tokenizer, ids: list[int], target: int, rng: np.random.Generator
) -> tuple[str, list[int]]:
    """A text that encodes to `target` tokens, and those tokens.

    Tokens next to each other may merge when their text is encoded again, so the list is cut or
    filled up and tried again, a bounded number of times; the ids returned are what the text
    really encodes to.
    """
    text = ""
    for _ in range(_MAX_ADJUSTMENTS + 1):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == target:
            break
        if len(ids) > target:
            ids = ids[:target]
        else:
            ids += rng.integers(0, tokenizer.vocab_size, size=target - len(ids)).tolist()
    else:
        ids = tokenizer.encode(text, add_special_tokens=False)
    return text, ids
