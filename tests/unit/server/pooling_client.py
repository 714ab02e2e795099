"""Requests to a server with a tiny pooling model, and what its replies say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from quire.cli.in_process import InProcessServer
from quire.config.engine_args import EngineArgs
from quire.server.args import ServerArgs

LONG = "sky " * 40
"""Longer than the context of the tiny models."""


class Client:
    """Posts JSON to one server."""

    def __init__(
        self, directory: Path, *, server: dict[str, Any] | None = None, **args: Any
    ) -> None:
        options = {"load_format": "dummy", "served_model_name": "tiny", "backend": "reference"}
        self._loop = asyncio.new_event_loop()
        given = EngineArgs(str(directory), **{**options, **args})
        self.server = InProcessServer(given, ServerArgs(**(server or {})))

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of a reply with status 200."""
        answer = self._loop.run_until_complete(self.server.post(path, body))
        assert answer.status == 200, answer.body
        return answer.body

    def refused(self, path: str, **body: Any) -> str:
        """The message of a reply with status 400."""
        answer = self._loop.run_until_complete(self.server.post(path, body))
        assert answer.status == 400, answer.body
        return str(answer.body["error"]["message"])

    def blamed(self, path: str, **body: Any) -> tuple[str, str]:
        """The field that a reply with status 400 names, and its message."""
        answer = self._loop.run_until_complete(self.server.post(path, body))
        assert answer.status == 400, answer.body
        return answer.body["error"]["param"], answer.body["error"]["message"]

    def status(self, path: str, body: dict[str, Any]) -> int:
        """The status of a reply."""
        return self._loop.run_until_complete(self.server.post(path, body)).status

    def raw(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """A reply that need not be JSON."""
        transport = httpx.ASGITransport(app=self.server._app)

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                return await client.post(path, json=body)

        return self._loop.run_until_complete(send())

    def close(self) -> None:
        self.server.close()
        self._loop.close()


def vector(client: Client, text: str, **fields: Any) -> list[float]:
    [item] = client.post("/v1/embeddings", input=text, **fields)["data"]
    found: list[float] = item["embedding"]
    return found
