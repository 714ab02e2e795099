"""`SamplingParams`: the sampling parameters of one request, and their validation.

Created by users and sent in `EngineCoreRequest`. Checks everything that does not depend on a model;
the InputProcessor checks the rest (vocabulary, `max_logprobs`, context length). Names, defaults,
order and messages are vLLM's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any, Protocol

import msgspec

from quire import env, token_checks
from quire import param_checks as checks
from quire.errors import quoted
from quire.forbidden_tokens import ForbiddenTokens
from quire.log import get_logger
from quire.reasoning.marks import ReasoningMarks
from quire.repetition import RepetitionDetectionParams, checked_detection
from quire.structured.params import StructuredOutputsParams, structured_outputs_of
from quire.suggest import did_you_mean
from quire.timestamp_rules import TimestampRules

logger = get_logger(__name__)

GREEDY_BELOW = 1e-5
"""Below this temperature, sampling is greedy."""
MIN_TEMPERATURE = 1e-2
"""Lower positive temperatures are raised to this value: dividing by them overflows float32."""
_MAX_SEED = 2**64 - 1


_NOTHING = ForbiddenTokens()

NOT_YET: dict[str, tuple[object, ...]] = {
    "prompt_logprob_token_ids": (None,),
    "prompt_logprob_start": (None,),
    "watermarking": (None, False),
}
"""vLLM's fields that are not implemented, with the values that have no effect."""
_WHY_NOT_YET = {
    "prompt_logprob_token_ids": "prompt_logprobs returns those of the most likely tokens",
    "prompt_logprob_start": "prompt_logprobs returns those of the whole prompt",
    "watermarking": "Quire does not watermark text",
}
_OLD_NAMES = {"guided_decoding": "structured_outputs"}
"""Names of fields in earlier versions of vLLM, with the current names."""


class ModelLimits(Protocol):
    """The parts of a model's configuration that `SamplingParams.verify` uses."""

    @property
    def max_logprobs(self) -> int:
        """Maximum number of log-probabilities per position; -1: the vocabulary size."""

    def get_vocab_size(self) -> int:
        """Size of the vocabulary in tokens."""


class RequestOutputKind(Enum):
    """Part of the output that each `RequestOutput` carries."""

    CUMULATIVE = 0
    """All output so far."""
    DELTA = 1
    """The output since the previous one."""
    FINAL_ONLY = 2
    """A single output with everything, when the request is finished."""


class SamplingType(IntEnum):
    """Method of sampling."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class _CheckedNames(msgspec.StructMeta):
    """Rejects unknown keywords and suggests the nearest name, which msgspec does not do."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for old, new in _OLD_NAMES.items():
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{old} is the former name of {new}: give only {new}")
                kwargs[new] = kwargs.pop(old)
        for name in kwargs:
            if name not in self.__struct_fields__ or name.startswith("_"):
                public = tuple(one for one in self.__struct_fields__ if not one.startswith("_"))
                raise TypeError(_unknown_message(name, public))
        return super().__call__(*args, **kwargs)


class SamplingParams(msgspec.Struct, metaclass=_CheckedNames, omit_defaults=True):
    """Sampling parameters for text generation; validated and normalised when created. Raises
    RequestError that names a wrong value, and TypeError for an unknown name.

    Fields that are assigned later are validated when the request is added.
    """

    n: int = 1
    """Number of outputs to return for the prompt."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each generated token; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once per generated occurrence; in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative logits, of tokens in the prompt and
    the output. Must be above 0; values above 1 discourage repetition."""
    temperature: float = 1.0
    """Randomness, in [0, 2]; 0 always chooses the most likely token."""
    watermarking: bool | None = None
    """Must be None or False: Quire does not watermark text."""
    top_p: float = 1.0
    """Keep the most likely tokens up to this total probability; in (0, 1]."""
    top_k: int = 0
    """Keep this number of the most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens whose probability is below this share of the highest one; in [0, 1]."""
    seed: int | None = None
    """Requests with the same seed get the same tokens; None: each request gets its own seed."""
    stop: str | list[str] | None = None
    """Strings that end the output; excluded from it unless `include_stop_str_in_output`."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output."""
    ignore_eos: bool = False
    """Do not stop at the model's end-of-sequence token."""
    max_tokens: int | None = 16
    """Maximum number of tokens to generate; None: until the context is full."""
    min_tokens: int = 0
    """Before this number of tokens, end-of-sequence, stop tokens and stop strings are ignored,
    unless `structured_outputs` allows no other token."""
    logprobs: int | None = None
    """Number of most likely tokens whose log-probabilities to return; -1: the whole vocabulary."""
    prompt_logprobs: int | None = None
    """Like `logprobs`, for the prompt's tokens from the second one on; bypasses the prefix
    cache."""
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    """Tokens whose log-probabilities to return instead of those of the most likely tokens."""
    flat_logprobs: bool = False
    """Return log-probabilities as `FlatLogprobs`, which behaves like a list and needs little
    memory."""
    detokenize: bool = True
    """False: return only token ids; `text` stays empty."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Put spaces between special tokens in the text."""
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    """Number of tokens between streamed outputs; the first and the last output are sent at once."""
    skip_clone: bool = False
    """True: this object is used for one request only, so it need not be copied."""
    structured_outputs: StructuredOutputsParams | None = None
    """Constraints on the form of the text."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these tokens; values are limited to [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """Only these tokens may be chosen."""
    extra_args: dict[str, Any] | None = None
    """Passed unchanged to custom logits processors. Engines in another process, and HTTP, accept
    only JSON values."""
    bad_words: list[str] | None = None
    """Texts that must not be generated, with or without a space before them: their last token is
    forbidden where the output ends with the other tokens."""
    skip_reading_prefix_cache: bool | None = None
    """True: compute the whole prompt even if its beginning is cached."""
    thinking_token_budget: int | None = None
    """Maximum number of reasoning tokens, after which the end mark is forced. None or -1: no
    limit."""
    repetition_detection: RepetitionDetectionParams | None = None
    """End an output that repeats itself, with the finish reason `repetition`."""
    routed_experts_prompt_start: int = 0
    """Accepted for compatibility; has no effect, because outputs do not contain the chosen
    experts."""
    trace_decode_token_ids: list[int] | None = None
    """Fixed output tokens. The output ends with the last of them, and no token is sampled;
    log-probabilities are the model's own. End tokens and stop strings do not end the output
    earlier."""
    repeat_last_n: int | None = None
    """The three penalties look at this number of the last tokens, of which those of the prompt
    count, too, as in llama.cpp and Ollama; 0: at none, -1: at all. None: as described for each."""
    _bad_words_token_ids: list[list[int]] | None = None
    _never_generated: ForbiddenTokens | None = None
    _timestamps: TimestampRules | None = None
    _gives_rows: bool = False
    _reasoning: ReasoningMarks | None = None
    _kept_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        _refuse_not_yet(self)
        self._normalise_numbers()
        self._normalise_stops()
        self.thinking_token_budget = _checked_budget(self.thinking_token_budget)
        if self.logit_bias is not None:
            self.logit_bias = token_checks.checked_logit_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            ids = token_checks.checked_allowed_token_ids(self.allowed_token_ids)
            self.allowed_token_ids = ids
        self.bad_words = checks.checked_bad_words(self.bad_words)
        self.extra_args = checks.checked_extra_args(self.extra_args)
        if self.repetition_detection is not None:
            self.repetition_detection = checked_detection(self.repetition_detection)
        if self.structured_outputs is not None:
            self.structured_outputs = structured_outputs_of(self.structured_outputs)
        if self.logprob_token_ids is not None:
            self.logprob_token_ids = token_checks.checked_logprob_token_ids(
                self.logprob_token_ids, self.logprobs
            )
        self._check_ranges()
        if self.trace_decode_token_ids is not None:
            self.trace_decode_token_ids = token_checks.checked_trace(self)
        if self.temperature < GREEDY_BELOW:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            if self.n > 1:
                raise checks.error(
                    "n", self.n, f"n must be 1 when using greedy sampling, got {self.n}."
                )

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Like the constructor, but None selects the default (except for `max_tokens`)."""
        defaults = {
            name: value
            for name, value in values.items()
            if value is not None or name == "max_tokens"
        }
        return cls(**defaults)

    @property
    def sampling_type(self) -> SamplingType:
        """Greedy, random, or random with the user's seed."""
        if self.temperature < GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def num_logprobs(self) -> int | None:
        """Number of log-probabilities per position, besides the sampled token's; None: return
        none."""
        if self.logprobs is None and self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs

    @property
    def follows_tokens(self) -> bool:
        """Whether the choice of the next token needs the one before it, or the host's part in it:
        no step of the request is planned before the last one's token is known."""
        words = [*(self.bad_words_token_ids or ()), *self.never_generated.words]
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        return (
            self.structured_outputs is not None
            or (penalties != (1, 0, 0) and self.repeat_last_n != 0)
            or any(len(word) > 1 for word in words)
            or self.thinking_token_budget is not None
            or self.trace_decode_token_ids is not None
            or self.timestamps is not None
            or self.num_logprobs is not None
            or self.prompt_logprobs is not None
            or self.gives_rows
        )

    @property
    def all_stop_token_ids(self) -> set[int]:
        """`stop_token_ids` as a set, without the model's end-of-sequence token, which the engine
        adds."""
        return set(self.stop_token_ids or ())

    @property
    def bad_words_token_ids(self) -> list[list[int]] | None:
        """`bad_words` as tokens; None before `update_from_tokenizer`."""
        return self._bad_words_token_ids

    @property
    def never_generated(self) -> ForbiddenTokens:
        """Tokens that the model forbids; none before `forbid`."""
        return self._never_generated or _NOTHING

    @property
    def reasoning(self) -> ReasoningMarks | None:
        """The reasoning marks of this request; None: those of the engine's options."""
        return self._reasoning

    @property
    def kept_token_ids(self) -> list[int]:
        """Special tokens that stay in the text despite `skip_special_tokens`: marks that the parser
        of replies needs. Set by the server, not by callers."""
        return self._kept_token_ids or []

    def keep_tokens(self, token_ids: Iterable[int]) -> None:
        """Set `kept_token_ids`."""
        self._kept_token_ids = sorted(token_ids)

    @property
    def output_text_buffer_length(self) -> int:
        """Number of characters to hold back while streaming, so that no part of a stop string
        appears."""
        if not self.stop or self.include_stop_str_in_output:
            return 0
        return max(len(text) for text in self.stop) - 1

    def __repr__(self) -> str:
        """Shows the fields that vLLM always shows, in its order, and other fields that were set."""
        names = [*_SHOWN, *(name for name in _OTHERS if getattr(self, name) != _OTHERS[name])]
        return f"SamplingParams({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def clone(self) -> SamplingParams:
        """A copy for one request. Lists and dicts are copied too, except with `skip_clone`."""
        copied = copy.copy(self)
        if self.skip_clone is not True:
            for name in _COPIED:
                if isinstance(value := getattr(self, name), list | dict):
                    setattr(copied, name, value.copy())
        return copied

    def verify(
        self,
        model_config: ModelLimits | None = None,
        speculative_config: None = None,
        structured_outputs_config: object = None,
        tokenizer: object = None,
    ) -> None:
        """Validate again after fields were assigned; with a model's configuration, also check that
        named tokens are in its vocabulary. The engine does both for each request, and the checks
        that need a tokenizer. Raises RequestError."""
        del speculative_config, structured_outputs_config, tokenizer
        self.__post_init__()
        if model_config is not None:
            check_for_model(self, model_config.get_vocab_size(), model_config.max_logprobs)

    def update_from_trace(self, room: int) -> None:
        """With `trace_decode_token_ids`, let only the end of these tokens end the output. `room`:
        number of tokens that fit into the context after the prompt. Requires `max_tokens`."""
        if self.trace_decode_token_ids is None:
            return
        trace = self.trace_decode_token_ids[: max(room, 1)]
        self.trace_decode_token_ids = trace
        self.max_tokens = min(self.max_tokens or len(trace), len(trace))
        self.min_tokens, self.ignore_eos = 0, True
        self.stop, self.stop_token_ids = [], []

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], eos_token_id: int | None = None
    ) -> None:
        """Add the model's other end-of-sequence ids to `stop_token_ids`, unless `ignore_eos`.

        The tokenizer's `eos_token_id` is not added: it ends a request with `stop_reason` None,
        while the others are reported like a user's stop tokens.
        """
        found = generation_config.get("eos_token_id")
        if self.ignore_eos or found is None:
            return
        ids = [found] if isinstance(found, int) else list(found)
        extra = [token_id for token_id in ids if token_id != eos_token_id]
        self.stop_token_ids = list(dict.fromkeys([*(self.stop_token_ids or []), *extra]))

    def mark_reasoning(self, marks: ReasoningMarks) -> None:
        """Set the reasoning marks of this request: grammars apply after the reasoning."""
        self._reasoning = marks

    def update_from_tokenizer(self, tokenizer: token_checks.TextEncoder) -> None:
        """Tokenize `bad_words`. Raises RequestError for words without tokens, or for too many
        words."""
        self._bad_words_token_ids = None
        if self.bad_words:
            most = env.max_bad_words()
            found = token_checks.bad_word_token_ids(self.bad_words, tokenizer, most)
            self._bad_words_token_ids = found

    @property
    def timestamps(self) -> TimestampRules | None:
        """Rules for timestamps; None before `write_timestamps`."""
        return self._timestamps

    @property
    def gives_rows(self) -> bool:
        """Whether the output is what the program gives for each position (`RowsOut`)."""
        return self._gives_rows

    def ask_for_rows(self) -> None:
        """Ask for the rows of all positions, and for no token. All of them are computed."""
        self._gives_rows, self.skip_reading_prefix_cache = True, True

    def write_timestamps(self, rules: TimestampRules) -> None:
        """Set the rules by which a speech model writes timestamps. The log-probabilities of the
        reply are those of the tokens that they leave."""
        self._timestamps = rules

    def forbid(self, tokens: ForbiddenTokens | None) -> None:
        """Set the tokens that the model never generates."""
        self._never_generated = tokens

    def _normalise_numbers(self) -> None:
        self.n = checks.as_int("n", self.n)
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            setattr(self, name, checks.as_float(name, getattr(self, name)))
        self.temperature = checks.as_float("temperature", self.temperature)
        self.top_p = checks.as_float("top_p", self.top_p)
        self.top_k = checks.as_int("top_k", self.top_k)
        self.min_p = checks.as_float("min_p", self.min_p)
        start = checks.as_int("routed_experts_prompt_start", self.routed_experts_prompt_start)
        self.routed_experts_prompt_start = start
        self.min_tokens = checks.as_int("min_tokens", self.min_tokens)
        if self.max_tokens is not None:
            self.max_tokens = checks.as_int("max_tokens", self.max_tokens)
        if self.stream_interval is not None:
            self.stream_interval = checks.as_int("stream_interval", self.stream_interval)
        if self.seed is not None:
            self.seed = checks.as_int("seed", self.seed, _MAX_SEED)
            self.seed = None if self.seed == -1 else self.seed
        self.logprobs = checks.as_count("logprobs", self.logprobs)
        self.prompt_logprobs = checks.as_count("prompt_logprobs", self.prompt_logprobs)
        if self.repeat_last_n is not None:
            self.repeat_last_n = checks.as_int("repeat_last_n", self.repeat_last_n)
        self._check_choices()
        if 0 < self.temperature < MIN_TEMPERATURE:
            logger.warning(
                "temperature %s is less than %s, which may cause numerical errors. "
                "We have maxed it out to %s.",
                self.temperature,
                MIN_TEMPERATURE,
                MIN_TEMPERATURE,
            )
            self.temperature = MIN_TEMPERATURE

    def _check_choices(self) -> None:
        for name in (*_FLAGS, "skip_reading_prefix_cache"):
            value = getattr(self, name)
            if value is None and name not in _FLAGS:
                continue
            if not isinstance(value, bool):
                raise checks.error(
                    name, value, f"{name} must be True or False, got {quoted(value)}."
                )
        if not isinstance(self.output_kind, RequestOutputKind):
            raise checks.error(
                "output_kind",
                self.output_kind,
                f"output_kind must be a RequestOutputKind, got {quoted(self.output_kind)}.",
            )

    def _normalise_stops(self) -> None:
        stop = checks.checked_stop(self.stop)
        if stop and not self.detokenize:
            raise checks.error(
                "stop",
                stop,
                "stop strings are only supported when detokenize is True. "
                "Set detokenize=True to use stop.",
            )
        self.stop = stop
        ids = self.stop_token_ids
        if ids is not None and not isinstance(ids, checks.LISTS):
            message = f"stop_token_ids must be a list, got {quoted(ids)}."
            raise checks.error("stop_token_ids", ids, message)
        if not all(checks.is_int(token_id) for token_id in ids or []):
            message = f"stop_token_ids must contain only integers, got {quoted(ids)}."
            raise checks.error("stop_token_ids", ids, message)
        self.stop_token_ids = list(dict.fromkeys(int(token_id) for token_id in ids or []))

    def _check_ranges(self) -> None:
        limit, most = self.max_tokens, env.max_n() if self.n > 1 else 1
        rules: tuple[tuple[str, bool, str], ...] = (
            ("n", self.n >= 1, "must be at least 1"),
            ("n", self.n <= most, f"must be at most {most}"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "must be in [-2, 2]"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "must be in [-2, 2]"),
            (
                "repetition_penalty",
                math.isfinite(self.repetition_penalty),
                "must be a finite number",
            ),
            ("repetition_penalty", self.repetition_penalty > 0, "must be greater than zero"),
            ("temperature", math.isfinite(self.temperature), "must be a finite number"),
            ("temperature", self.temperature >= 0, "must be non-negative"),
            ("temperature", self.temperature <= 2, "must be in [0, 2]"),
            ("top_p", 0 < self.top_p <= 1, "must be in (0, 1]"),
            ("top_k", self.top_k >= -1, "must be 0 (disable), or at least 1"),
            ("min_p", 0 <= self.min_p <= 1, "must be in [0, 1]"),
            ("max_tokens", limit is None or limit >= 1, "must be at least 1"),
            ("min_tokens", self.min_tokens >= 0, "must be greater than or equal to 0"),
            (
                "min_tokens",
                limit is None or self.min_tokens <= limit,
                f"must be less than or equal to max_tokens={limit}",
            ),
            (
                "stream_interval",
                self.stream_interval is None or self.stream_interval >= 1,
                "must be at least 1",
            ),
            ("repeat_last_n", (self.repeat_last_n or 0) >= -1, "must be at least -1"),
            ("logprobs", (self.logprobs or 0) >= -1, "must be non-negative or -1"),
            ("prompt_logprobs", (self.prompt_logprobs or 0) >= -1, "must be non-negative or -1"),
        )
        checks.check_rules(self, rules)


def check_for_model(params: SamplingParams, vocab_size: int, max_logprobs: int) -> None:
    """Raises RequestError for tokens outside of the vocabulary, and for too many log-probabilities;
    `max_logprobs` -1: the vocabulary size."""
    checks.check_num_logprobs(params, vocab_size, max_logprobs)
    if any(getattr(params, name) for name in token_checks.FIELDS):
        token_checks.check_vocabulary(params, vocab_size)


_SHOWN = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature",
    "watermarking", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "bad_words",
    "thinking_token_budget", "include_stop_str_in_output", "ignore_eos", "max_tokens",
    "min_tokens", "logprobs", "prompt_logprobs", "skip_special_tokens",
    "spaces_between_special_tokens", "structured_outputs", "extra_args",
)  # fmt: skip
_OTHERS = {
    field.name: field.default
    for field in msgspec.structs.fields(SamplingParams)
    if field.name not in _SHOWN and not field.name.startswith("_")
}
_COPIED = ("stop", "bad_words", *token_checks.FIELDS)
_FLAGS = (
    "ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output", "skip_clone", "flat_logprobs",
)  # fmt: skip


def _checked_budget(given: Any) -> int | None:
    if given is None or (checks.is_int(given) and given == -1):
        return None
    if not checks.is_int(given) or not 0 <= given < 2**63:
        message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
        raise checks.error("thinking_token_budget", given, f"{message[:-1]}, got {quoted(given)}.")
    return int(given)


def _refuse_not_yet(params: SamplingParams) -> None:
    for name, neutral in NOT_YET.items():
        value = getattr(params, name)
        if value is neutral[0]:
            continue
        if not any(_is_same(value, allowed) for allowed in neutral):
            raise checks.error(
                name,
                value,
                f"{name} is not supported yet, got {quoted(value)}; leave it at {neutral[0]}: "
                f"{_WHY_NOT_YET[name]}.",
            )
        setattr(params, name, neutral[0])


def _is_same(value: object, allowed: object) -> bool:
    if isinstance(allowed, float):
        return (checks.is_int(value) or isinstance(value, float)) and value == allowed
    return type(value) is type(allowed) and value == allowed


def _unknown_message(name: str, known: tuple[str, ...]) -> str:
    return f"SamplingParams has no field {quoted(name)}{did_you_mean(name, known)}"
