"""`/v1/chat/completions/batch`: one reply to several conversations, each by one choice."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError, quoted
from quire.outputs import RequestOutput
from quire.server.apis.chat.routes import conversation_of, read_fields
from quire.server.apis.chat.schema import BatchChatRequest, ChatResponse
from quire.server.apis.chat.writing import ChatWriter, chat_writer
from quire.server.bodies.json_http import context_of
from quire.server.conversation.conversation import Conversation
from quire.server.generation.begin import begin, whole_of
from quire.server.generation.reply import ReplyHead
from quire.server.generation.usage import added, timings, usage_of
from quire.server.json_pieces import JsonList
from quire.server.requests.prompts import PreparedPrompt
from quire.server.requests.reading import refuse_unsupported
from quire.server.requests.request import AnyRequest, TextRequest
from quire.server.routing import Routes
from quire.server.served_model import ServedModel

ROUTES = Routes("generation")


def read_batch(model: ServedModel, batch: BatchChatRequest) -> TextRequest[list[Conversation]]:
    """A request with several conversations. Raises RequestError."""
    for name, (neutral, what) in _REFUSED.items():
        value = getattr(batch, name)
        if value not in neutral:
            raise RequestError(
                f"Batch chat completions do not support {what}. Leave `{name}` at {neutral[-1]!r}, "
                "or send each conversation to /v1/chat/completions.",
                parameter=name,
            )
    if batch.n not in (None, 1):
        raise RequestError(
            "Batch chat completions do not support `n > 1`. Please set `n` to 1, got "
            f"{quoted(batch.n)}.",
            parameter="n",
            value=batch.n,
        )
    model.limits.check_prompts(len(batch.messages), 1, name="messages")
    refuse_unsupported(batch)
    return read_fields(batch, [conversation_of(batch, each, True) for each in batch.messages])


_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "stream": ((None, False), "streams"),
    "use_beam_search": ((None, False), "beam search"),
    "tools": ((None,), "tools"),
    "prompt_logprobs": ((None,), "`prompt_logprobs`, which a reply has for one prompt"),
    "return_prompt_text": ((None, False), "`return_prompt_text`, which is of one prompt"),
}
"""Fields of a chat that a batch does not have: the values without effect, and what they ask for."""


@ROUTES.on("POST", "/v1/chat/completions/batch", response=ChatResponse)
async def chat_completions_batch(http: Request, batch: BatchChatRequest) -> Response:
    """Continues several conversations, each by one choice of the reply."""
    asked = read_batch(context_of(http).target(batch.model).model, batch)
    head = ReplyHead.of(context_of(http), http, asked, "chatcmpl")
    generation, writer = await begin(http, asked, head, batch_writer)
    return await whole_of(http, generation, writer)


class BatchChatWriter:
    """One whole reply to several conversations. A choice's index is that of its conversation."""

    repeats_prompt = False

    def __init__(self, head: ReplyHead, writers: Sequence[ChatWriter]) -> None:
        """`writers`: one for each conversation."""
        self._head = head
        self._writers = writers

    def whole(self, finals: Sequence[RequestOutput]) -> ChatResponse:
        """The reply."""
        choices = JsonList()
        for index, (writer, final) in enumerate(zip(self._writers, finals, strict=True)):
            [one] = final.outputs
            choices.add([writer.choice(one, index)])
        usage = usage_of(finals, added(writer.reasoning_tokens() for writer in self._writers))
        response = self._head.begin(ChatResponse, choices=choices.as_field(), usage=usage)
        if self._head.has_metrics:
            response.metrics = timings(finals[-1].metrics)
        return response


def batch_writer(
    asked: AnyRequest, head: ReplyHead, prompts: Sequence[PreparedPrompt]
) -> BatchChatWriter:
    """Writes one reply to several conversations."""
    return BatchChatWriter(head, [chat_writer(asked, head, [prompt]) for prompt in prompts])
