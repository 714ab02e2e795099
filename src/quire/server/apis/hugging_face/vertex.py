"""text-generation-inference's `/vertex`, whose instances are prompts or chats."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.server.apis.chat.routes import read_chat
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.chat.writing import chat_writer
from quire.server.apis.hugging_face.tgi_reading import read_tgi
from quire.server.apis.hugging_face.tgi_schema import TgiRequest
from quire.server.apis.hugging_face.tgi_writing import writer_of
from quire.server.bodies.json_http import body_decoder, context_of, json_response
from quire.server.bodies.lax_values import Decoded
from quire.server.generation.begin import begin
from quire.server.generation.reply import ReplyHead, check_end
from quire.server.http.presence import until_gone
from quire.server.http.problems import HttpError, decode_problem
from quire.server.routing import Routes


class VertexRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Prompts to be continued, as `/generate` takes them, and chats, which have `messages`."""

    instances: list[dict[str, Any]]
    model: str | None = None


class VertexReply(msgspec.Struct, kw_only=True):
    """The texts, in the order of the instances."""

    predictions: list[str]


ROUTES = Routes("generation", takes_any_name=True)


@ROUTES.on("POST", "/vertex", response=VertexReply)
async def vertex(http: Request, asked: VertexRequest) -> Response:
    """Continues prompts and answers chats, one after the other. For Google's Vertex AI."""
    context = context_of(http)
    limits = context.target(asked.model).model.limits
    limits.check_prompts(len(asked.instances), 1, "instances")
    size = len(await http.body())
    instances = await context.pool.run(size, _decoded, asked.instances)
    unknown = [f"instances.{name}" for one in instances for name in one.unknown]
    context.ignored_fields.tell(http, unknown)
    predictions = []
    for index, one in enumerate(instances):
        one.body.model = asked.model
        try:
            text = await _prediction(http, one.body, f"vertex{index}")
        except RequestError as error:
            name = f"instances[{index}].{error.parameter or ''}".rstrip(".")
            raise RequestError(f"instances[{index}]: {error}", parameter=name) from None
        if text is None:
            return Response()
        predictions.append(text)
    return json_response(VertexReply(predictions=predictions))


def _decoded(instances: list[dict[str, Any]]) -> list[Decoded[Any]]:
    """Raises HttpError 400 naming the field."""
    found: list[Decoded[Any]] = []
    for index, instance in enumerate(instances):
        decoder = body_decoder(ChatRequest if "messages" in instance else TgiRequest)
        try:
            found.append(decoder.decode(msgspec.json.encode(instance)))
        except msgspec.DecodeError as error:
            text = str(error)
            where = f"$.instances[{index}]"
            text = text.replace("`$", f"`{where}") if "`$" in text else f"{text} - at `{where}`"
            raise HttpError(decode_problem(msgspec.ValidationError(text))) from None
    return found


async def _prediction(http: Request, asked: TgiRequest | ChatRequest, prefix: str) -> str | None:
    """The text of one reply; None: the client has left."""
    if isinstance(asked, ChatRequest):
        return await _answer(http, asked, prefix)
    request = read_tgi(asked, stream=False)
    head = ReplyHead.of(context_of(http), http, request, prefix)
    generation, writer = await begin(http, request, head, writer_of(asked))
    finals = await until_gone(http, generation.close, generation.final_outputs())
    return None if finals is None else writer.part(finals[0], finals[0].outputs[0]).generated_text


async def _answer(http: Request, chat: ChatRequest, prefix: str) -> str | None:
    for name, neutral in (("stream", (None, False)), ("n", (None, 1))):
        if getattr(chat, name) not in neutral:
            raise RequestError(f"{name} must be {neutral[1]}: a chat has one prediction",
                               parameter=name)  # fmt: skip
    request = read_chat(chat)
    head = ReplyHead.of(context_of(http), http, request, prefix)
    generation, writer = await begin(http, request, head, chat_writer)
    finals = await until_gone(http, generation.close, generation.final_outputs())
    if finals is None:
        return None
    [one] = finals[0].outputs
    check_end(finals[0], one)
    return writer.content(one)
