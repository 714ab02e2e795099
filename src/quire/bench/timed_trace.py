"""Traces of real traffic: when each request came, how long it was, and what it had in common with
others.

A line of the file is a JSON object such as `{"timestamp": 27, "input_length": 6955,
"output_length": 52, "hash_ids": [46, 47]}`; the names can be chosen. Equal hash ids stand for equal
pieces of prompts, so that a replay finds as much in a prefix cache as the traffic did. The tokens
themselves are random: they follow from the hash id alone. Called by `datasets`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quire.errors import ConfigError
from quire.tokenizer import Tokenizer

MAX_PROMPT_TOKENS = 1 << 24
_OWN = 1 << 64
"""First seed of tokens that no hash id represents."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """The format of the lines of a trace."""

    piece_len: int
    """Tokens per hash id; the last id of a prompt may have fewer."""
    seconds: float
    """Seconds in one unit of the timestamps."""
    time: str
    input_len: str
    output_len: str
    hash_ids: str
    """Names of the fields."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace."""

    at_s: float
    """Seconds after the first request."""
    token_ids: list[int]
    output_len: int


def read_trace(
    text: str, path: Path, form: TraceFormat, tokenizer: Tokenizer, count: int
) -> list[TracedRequest]:
    """The first `count` requests of a trace, in the order of their times. Raises ConfigError."""
    special = tokenizer.special_token_ids
    allowed = np.array([each for each in range(tokenizer.vocab_size) if each not in special])
    found = []
    for number, line in enumerate(_lines(text), start=1):
        if number > count:
            break
        try:
            record = json.loads(line)
            at_s = float(_field(record, form.time, "timestamp")) * form.seconds
            input_len = int(_field(record, form.input_len, "input-length"))
            output_len = int(_field(record, form.output_len, "output-length"))
            hash_ids = [int(each) for each in record.get(form.hash_ids) or ()]
            _check(at_s, input_len, output_len)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, request {number}: {error}") from None
        ids = _prompt(hash_ids, input_len, form.piece_len, allowed, number)
        found.append(TracedRequest(at_s, ids, output_len))
    found.sort(key=lambda request: request.at_s)
    begin = found[0].at_s if found else 0.0
    return [TracedRequest(each.at_s - begin, each.token_ids, each.output_len) for each in found]


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.strip())


def _field(record: Mapping[str, Any], name: str, option: str) -> Any:
    if record.get(name) is None:
        raise ValueError(
            f"no field {name!r} among {', '.join(map(repr, record))}; name the one that has it "
            f"with --timed-trace-label-{option}"
        )
    return record[name]


def _check(at_s: float, input_len: int, output_len: int) -> None:
    if not math.isfinite(at_s):
        raise ValueError(f"the time {at_s} is not finite")
    if not 1 <= input_len <= MAX_PROMPT_TOKENS:
        raise ValueError(f"a prompt has from 1 to {MAX_PROMPT_TOKENS} tokens, not {input_len}")
    if output_len < 1:
        raise ValueError(f"at least 1 token is asked for, not {output_len}")


def _prompt(
    hash_ids: Sequence[int], length: int, piece_len: int, allowed: np.ndarray[Any, Any], number: int
) -> list[int]:
    """Return the tokens of the hash ids' pieces; the remaining tokens are unique to the request."""
    ids: list[int] = []
    for hash_id in hash_ids:
        ids += _piece(hash_id % _OWN, min(piece_len, length - len(ids)), allowed)
        if len(ids) == length:
            return ids
    return ids + _piece(_OWN + number, length - len(ids), allowed)


def _piece(seed: int, length: int, allowed: np.ndarray[Any, Any]) -> list[int]:
    tokens: list[int] = allowed[
        np.random.default_rng(seed).integers(0, len(allowed), length)
    ].tolist()
    return tokens
