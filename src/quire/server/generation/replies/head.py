"""`ReplyHead`: what all parts of one reply have in common, and which extras were asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from quire.errors import RequestError
from quire.frontend.inputs.tasks import cannot_generate
from quire.server.generation.reply_fields import ReplyFields
from quire.server.generation.request_fields import GenerationFields

if TYPE_CHECKING:
    from quire.server.context import ServerContext, Target

Reply = TypeVar("Reply", bound=ReplyFields)


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Id, time, model, and what goes along with the text."""

    id: str
    created: int
    model: str
    target: Target
    """What `model` stands for."""
    fingerprint: str | None
    include_usage: bool
    continuous_usage: bool
    has_metrics: bool
    tokens_as_ids: bool
    """Tokens of log-probabilities are written as their ids."""

    @classmethod
    def of(
        cls,
        context: ServerContext,
        http: Request,
        request: GenerationFields,
        prefix: str,
    ) -> ReplyHead:
        """For a request; its id is the caller's `X-Request-Id` or `request_id`, or random.

        Raises HttpError 404 if the model is not served here, and RequestError if it gives vectors
        or classes instead of text.
        """
        has_own_id = "x-request-id" in http.headers
        target = context.target(request.model)
        engine = target.model.engine
        if engine is not None and engine.config.model.pooling is not None:
            raise RequestError(cannot_generate(engine.config.model), parameter="model")
        base = http.state.request_id if has_own_id else request.request_id
        options, args = request.stream_options, context.args
        wants_usage = options is not None and options.include_usage is True
        as_ids = request.return_tokens_as_token_ids
        return cls(
            id=f"{prefix}-{base or http.state.request_id}",
            created=int(time.time()),
            model=target.name,
            target=target,
            fingerprint=target.model.fingerprint,
            include_usage=wants_usage or args.enable_force_include_usage,
            continuous_usage=args.enable_force_include_usage
            or (wants_usage and options is not None and options.continuous_usage_stats is True),
            has_metrics=request.include_metrics is True or args.enable_per_request_metrics,
            tokens_as_ids=args.return_tokens_as_token_ids if as_ids is None else as_ids,
        )

    def begin(self, kind: type[Reply], **fields: Any) -> Reply:
        """A reply, or an event of one, that begins like all of this request's."""
        return kind(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            **fields,
        )
