"""`RequestObserver`: the base class of observers of request events; and `RequestLog`, which logs
requests.

Called by the `OutputProcessor`, on the front end's thread. Observers keep sums; data of a single
request is in its record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.frontend.completion_state import CompletionState
from quire.frontend.request_record import RequestRecord
from quire.log import get_logger
from quire.protocol import SchedulerStats
from quire.tokenizer import Tokenizer


@dataclass(slots=True)
class StepTokens:
    """The generated tokens of one step, of all requests."""

    num_new: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """For each completion that had tokens before: seconds since then; negative if the clock was set
    back."""


class RequestObserver:
    """Ignores all events; observers override the events that they need.

    A request is admitted, then handed over or withdrawn. A request that was handed over ends with
    `on_finished` for each of its completions, for whatever reason.
    """

    def on_admitted(self, record: RequestRecord) -> None:
        """A request was admitted. It has no completions yet."""

    def on_withdrawn(self, record: RequestRecord) -> None:
        """An admitted request will not be handed over."""

    def on_handed_over(self, record: RequestRecord) -> None:
        """The request is passed to the engine core."""

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        """A completion has received its first token."""

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        """A completion has ended; its `finish_reason` is `stop`, `length`, `abort` or `error`. The
        record's `num_open` no longer counts it."""

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        """A step has ended, after all events of single requests in it."""

    def on_rejected(self, reason: str) -> None:
        """A request was rejected by the queue limit of that name."""

    def on_sleep(self, level: int | None) -> None:
        """The engine has entered this sleep level; None: it is awake."""

    def log(self) -> None:
        """Log now."""

    def log_when_due(self) -> None:
        """Log if the logging interval has passed."""


logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestLogChoice:
    """Parts of requests to log in addition to their parameters."""

    outputs: bool = False
    """Whether to log the text of each completion when it has ended."""
    max_chars: int | None = None
    """Maximum characters of a text, and maximum number of its token ids."""


def request_log_choice(
    engine_args: EngineArgs, outputs: bool, max_chars: int | None
) -> RequestLogChoice | None:
    """The parts of requests to log; None: nothing. Raises ConfigError for outputs without
    requests."""
    if getattr(engine_args, "enable_log_requests", False):
        return RequestLogChoice(outputs, max_chars)
    if outputs:
        raise ConfigError("enable_log_outputs requires enable_log_requests: give both")
    return None


class RequestLog(RequestObserver):
    """Logs each request, and its outputs if they are enabled. Prompts and token ids are logged only
    at level DEBUG."""

    def __init__(self, choice: RequestLogChoice, tokenizer: Tokenizer | None) -> None:
        self._choice = choice
        self._tokenizer = tokenizer

    def on_handed_over(self, record: RequestRecord) -> None:
        request, limit = record.input, self._choice.max_chars
        logger.info(
            "request %s: %d prompt tokens, %s",
            request.request_id,
            record.num_prompt_tokens,
            request.params,
        )
        logger.debug(
            "request %s: prompt %r, token ids %s",
            request.request_id,
            None if request.prompt is None else request.prompt[:limit],
            request.prompt_token_ids[:limit],
        )

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        del now
        if not self._choice.outputs:
            return
        ids, limit = completion.token_ids, self._choice.max_chars
        text = "" if self._tokenizer is None else self._tokenizer.decode(ids)
        name = f"request {record.input.request_id}, output {completion.index}"
        logger.info(
            "%s: %s after %d tokens: %r", name, completion.finish_reason, len(ids), text[:limit]
        )
        logger.debug("%s: token ids %s", name, ids[:limit])
