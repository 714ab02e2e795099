"""`RequestLog`: log lines for each request that is sent to the core (`--enable-log-requests`)."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver
from quire.frontend.request_record import RequestRecord
from quire.log import get_logger
from quire.tokenizer import Tokenizer

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestLogChoice:
    """What to log of requests in addition to their parameters."""

    outputs: bool = False
    """Whether to log the text of each completion when it has ended."""
    max_chars: int | None = None
    """Maximum characters of a text, and maximum number of its token ids."""


def request_log_choice(
    engine_args: EngineArgs, outputs: bool, max_chars: int | None
) -> RequestLogChoice | None:
    """What to log of requests; None: nothing. Raises ConfigError for outputs without requests."""
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
