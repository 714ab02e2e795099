"""`RequestLog`: a line for each request that goes to the engine (`--enable-log-requests`)."""

from __future__ import annotations

from quire.frontend.observers.observer import RequestObserver
from quire.frontend.request_record import RequestRecord
from quire.log import get_logger

logger = get_logger(__name__)


class RequestLog(RequestObserver):
    """Logs what was asked for, without the prompt's text."""

    def on_handed_over(self, record: RequestRecord) -> None:
        request = record.input
        logger.info(
            "request %s: %d prompt tokens, %s",
            request.request_id,
            record.num_prompt_tokens,
            request.params,
        )
