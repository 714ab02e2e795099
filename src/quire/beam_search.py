"""Beam search: `BeamSearchParams`, and the sequences that a search finds. Names are vLLM's.

Made by users and returned by `LLM.beam_search`. What needs no model is checked here;
`frontend/beam_search.py` checks the rest and searches.
"""

from __future__ import annotations

import math

import msgspec

from quire import env
from quire.errors import quoted
from quire.outputs import BeamSearchOutput, BeamSearchSequence
from quire.param_checks import (
    as_float,
    as_int,
    check_rules,
    checked_stop,
    error,
)
from quire.structured.params import StructuredOutputsParams, structured_outputs_of
from quire.token_checks import MAX_LOGPROB_TOKEN_IDS, checked_allowed_token_ids

__all__ = ["MAX_LENGTH_PENALTY", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence"]

MAX_LENGTH_PENALTY = 16.0
"""Largest exponent of a length, positive or negative: a power of any length is a finite number."""
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


class BeamSearchParams(msgspec.Struct, omit_defaults=True):
    """Parameters of a beam search; validated when made. Raises RequestError.

    Assigning to a field afterwards is not validated until the search begins.
    """

    beam_width: int
    """Sequences that are kept at each step, and returned."""
    max_tokens: int
    """Most tokens to generate; the context may end a sequence earlier."""
    ignore_eos: bool = False
    """Do not stop at the model's end-of-sequence token."""
    temperature: float = 0.0
    """In [0, 2]. Sequences are compared by the log-probabilities that `logprobs_mode` names: the
    raw ones do not depend on the temperature."""
    length_penalty: float = 1.0
    """A sequence's score is the sum of its log-probabilities, divided by this power of the number
    of its generated tokens, end-of-sequence token included. Larger values favour longer sequences;
    in [-16, 16]."""
    include_stop_str_in_output: bool = False
    """Keep stop strings in the text, and the end-of-sequence token in the token ids of the server's
    replies; `LLM.beam_search` always keeps tokens."""
    structured_outputs: StructuredOutputsParams | None = None
    """Constraint on the text of each sequence. Sequences are compared by the log-probabilities
    among the tokens that it allows."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    watermarking: bool | None = None
    """Must be None or False: Quire does not watermark text."""
    allowed_token_ids: list[int] | None = None
    """Only these tokens can follow, at most 128, without structured_outputs. Their
    log-probabilities are those among all tokens."""
    stop: str | list[str] | None = None
    """Strings that end a sequence; vLLM has none. Not part of the text unless
    `include_stop_str_in_output`."""

    def __post_init__(self) -> None:
        self.beam_width = as_int("beam_width", self.beam_width)
        self.max_tokens = as_int("max_tokens", self.max_tokens)
        self.temperature = as_float("temperature", self.temperature)
        self.length_penalty = as_float("length_penalty", self.length_penalty)
        self.stop = checked_stop(self.stop)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = checked_allowed_token_ids(self.allowed_token_ids)
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise error(name, value, f"{name} must be True or False, got {quoted(value)}.")
        self.structured_outputs = structured_outputs_of(self.structured_outputs)
        if self.watermarking is not None and self.watermarking is not False:
            message = f"watermarking must be None or False, got {quoted(self.watermarking)}."
            raise error("watermarking", self.watermarking, message)
        self._check_ranges()
        self._check_allowed()

    def verify(self) -> None:
        """Validates again, after fields were assigned. Raises RequestError."""
        self.__post_init__()

    def _check_ranges(self) -> None:
        penalty, most = self.length_penalty, env.max_n()
        rules: tuple[tuple[str, bool, str], ...] = (
            ("beam_width", self.beam_width >= 1, "must be at least 1"),
            ("beam_width", self.beam_width <= most, f"must be at most {most}"),
            ("max_tokens", self.max_tokens >= 1, "must be at least 1"),
            ("temperature", math.isfinite(self.temperature), "must be a finite number"),
            ("temperature", 0 <= self.temperature <= 2, "must be in [0, 2]"),
            ("length_penalty", math.isfinite(penalty), "must be a finite number"),
            ("length_penalty", abs(penalty) <= MAX_LENGTH_PENALTY, "must be in [-16, 16]"),
        )
        check_rules(self, rules)

    def _check_allowed(self) -> None:
        ids = self.allowed_token_ids
        if ids is None:
            return
        if self.structured_outputs is not None:
            message = "allowed_token_ids cannot be used with structured_outputs in a beam search."
            raise error("allowed_token_ids", ids, message)
        if len(ids) > MAX_LOGPROB_TOKEN_IDS:
            most = f"at most {MAX_LOGPROB_TOKEN_IDS} tokens in a beam search, got {len(ids)}"
            raise error("allowed_token_ids", ids, f"allowed_token_ids must have {most}.")
