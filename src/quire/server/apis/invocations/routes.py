"""`/invocations`: Amazon SageMaker's route to chats, completions and sessions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError, quoted
from quire.server.apis.chat.routes import chat_completions
from quire.server.apis.completions.routes import completions
from quire.server.apis.invocations.sessions import SessionRequest, Sessions
from quire.server.bodies.json_http import context_of, field_names, read_body

_ADAPTER_HEADER = "x-amzn-sagemaker-adapter-identifier"


async def invocations(http: Request) -> Response | ASGIApp:
    """A chat, a completion or a session's begin or end, by its body. For Amazon SageMaker."""
    given, context = await field_names(http), context_of(http)
    sessions: Sessions = http.app.state.sessions
    if "requestType" in given:
        asked = await read_body(http, SessionRequest)
        if others := sorted(given - {"requestType"}):
            message = f"a request for a session has no field {quoted(others[0])}; leave it out"
            raise RequestError(message, parameter=others[0])
        opens = asked.request_type == "NEW_SESSION"
        return sessions.begin() if opens else sessions.close(http)
    sessions.check(http)
    adapter = http.headers.get(_ADAPTER_HEADER)
    if adapter is not None:  # it stands for the body's model; another name is answered 404
        context.target(adapter)
    if "messages" in given:
        return await chat_completions(http)
    if "prompt" in given:
        return await completions(http)
    raise RequestError(
        "Cannot find suitable handler for request. Expected one of: "
        "['ChatCompletionRequest', 'CompletionRequest']; a body with `messages` is the first, one "
        "with `prompt` the second.",
        parameter="messages",
    )
