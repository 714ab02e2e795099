"""The routes for the words of a sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.audio import chat_words, timed_words
from quire.server.apis.audio.schema import (
    TranscriptionChunk,
    TranscriptionRequest,
    TranscriptionResponse,
    VerboseTranscription,
)
from quire.server.bodies.json_http import context_of
from quire.server.generation.spoken import transcriber_of
from quire.server.http.auth import TENANT_SALT
from quire.server.http.presence import while_present
from quire.server.routing import Routes

if TYPE_CHECKING:
    from quire.transcription.transcriber import Transcriber

ROUTES = Routes("generation")
_GIVES: dict[str, Any] = {
    "gives": "words of sound",
    "response": (TranscriptionResponse, VerboseTranscription),
    "texts": ("text/plain", "text/vtt"),
    "stream": TranscriptionChunk,
}


@ROUTES.on("POST", "/v1/audio/transcriptions", **_GIVES)
async def transcriptions(http: Request, form: TranscriptionRequest) -> Response | ASGIApp:
    """The words of a sound."""
    if (transcriber := _transcriber(http, form)) is not None:
        return await timed_words.answered(http, form, "transcribe", transcriber)
    return await while_present(http, chat_words.answered(http, form))


@ROUTES.on("POST", "/v1/audio/translations", **_GIVES)
async def translations(http: Request, form: TranscriptionRequest) -> Response | ASGIApp:
    """The words of a sound, in English."""
    if (transcriber := _transcriber(http, form)) is not None:
        return await timed_words.answered(http, form, "translate", transcriber)
    raise RequestError(
        "translations need a model of Whisper's kind; a model that hears sounds in chats "
        "translates when a message asks for it",
        parameter="model",
    )


def _transcriber(http: Request, form: TranscriptionRequest) -> Transcriber | None:
    model = context_of(http).target(form.model).model
    return transcriber_of(model, getattr(http.state, TENANT_SALT, None))
