"""The server's application without a socket: requests are function calls.

Used by `quire run-batch`, so that a line of its file and an HTTP request are validated and answered
by the same code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.chat.async_renderer import AsyncChatRenderer
from quire.chat.templates import ChatTemplates
from quire.config.engine_args import EngineArgs
from quire.errors import RequestError
from quire.frontend.observers.observer import request_log_choice
from quire.frontend.online.async_llm import AsyncLLM
from quire.images.sources import ImageSources
from quire.planning.plan import build_engine_config
from quire.server.app import build_app
from quire.server.args import ServerArgs
from quire.server.bodies.forms import form_of
from quire.server.context import ServerContext
from quire.server.generation.spoken import transcriber_of

if TYPE_CHECKING:
    from quire.transcription.transcriber import Transcriber

AUDIO_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")


@dataclass(frozen=True, slots=True)
class Answer:
    """The application's reply."""

    status: int
    body: Any
    request_id: str


class InProcessServer:
    """An engine and its server application. Owned by one event loop."""

    def __init__(self, engine_args: EngineArgs, args: ServerArgs) -> None:
        """Load the model. Raises ConfigError, ModelError or BackendError."""
        request_log = request_log_choice(engine_args, args.enable_log_outputs, args.max_log_len)
        config = build_engine_config(engine_args)
        self.engine = AsyncLLM(config, engine_mode="thread", request_log=request_log)
        context = ServerContext(args)
        self._model = context.add_model(config.model.served_model_name)
        self._model.engine = self.engine
        if self.engine.tokenizer is not None:
            templates = ChatTemplates.of_model(config.model, self.engine.tokenizer.roles)
            self._model.chat = AsyncChatRenderer(templates)
        self._app = build_app(context, ())

    async def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Send a POST request to the application; returns its complete reply. The audio of a
        transcription or translation is at the body's `file_url`, as in vLLM's batches."""
        if path not in AUDIO_PATHS:
            return await self._post(path, "application/json", json.dumps(body).encode())
        try:
            file = await asyncio.to_thread(self._read, body.get("file_url"))
            texts = [
                (name, one if isinstance(one, str) else json.dumps(one))
                for name, value in body.items()
                if name != "file_url" and value is not None
                for one in (value if isinstance(value, list) else [value])
            ]
            return await self._post(path, *form_of(texts, file))
        except (RequestError, UnicodeEncodeError) as error:
            return Answer(400, {"error": {"message": str(error), "code": 400}}, "")

    async def words(self, sound: bytes, fields: Mapping[str, str]) -> Answer:
        """The reply of the route for transcriptions to a form with these fields."""
        return await self._post(AUDIO_PATHS[0], *form_of(fields.items(), sound))

    def _read(self, url: object) -> bytes:
        """The bytes of a file; none if the model hears nothing, which the reply says."""
        images = self.engine.config.model.images
        if not isinstance(url, str):
            raise RequestError("file_url must be the URL of the audio: data:audio/wav;base64,...")
        return b"" if images is None else ImageSources.of(images).read(url)

    async def _post(self, path: str, media: str, data: bytes) -> Answer:
        pending: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": data}]
        status, headers, pieces = 500, {}, []

        async def receive() -> MutableMapping[str, Any]:
            if pending:
                return pending.pop()
            await asyncio.Event().wait()  # this client never disconnects
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], dict(message.get("headers", ()))
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": b"", "client": None, "server": None,
            "headers": [
                (b"content-type", media.encode()),
                (b"content-length", str(len(data)).encode()),
            ],
        }  # fmt: skip
        await self._app(scope, receive, send)
        request_id = headers.get(b"x-request-id", b"").decode()
        kind = headers.get(b"content-type", b"")
        if kind.startswith(b"text/"):
            return Answer(status, b"".join(pieces).decode(), request_id)
        if not kind.startswith(b"application/json"):
            message = "the reply must be JSON here: encoding_format must be float or base64"
            return Answer(400, {"error": {"message": message, "code": 400}}, request_id)
        return Answer(status, json.loads(b"".join(pieces)), request_id)

    def transcriber(self) -> Transcriber | None:
        """The transcriber of a model of Whisper's kind; None for other models."""
        return transcriber_of(self._model)

    def metrics(self) -> bytes:
        """The body of `/metrics`. Must be called on the event loop."""
        text: bytes = self._app.state.exposition().text()
        return text

    def close(self) -> None:
        """Shut down the engine."""
        if self._model.chat is not None:
            self._model.chat.close()
        self.engine.shutdown()
