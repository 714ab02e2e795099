"""Two API keys of one server: what one has asked does not make the other's replies faster."""

from __future__ import annotations

from .conftest import StartServer

PROMPT = [number % 200 + 1 for number in range(100)]


def test_nobody_finds_the_blocks_of_another(start_server: StartServer) -> None:
    server = start_server(api_key=("one", "two"))
    found = []
    with server.client() as client:
        for key, salt in (("one", "a"), ("two", "a"), ("one", "a"), ("two", "a"), ("one", "b")):
            body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
            headers = {"Authorization": f"Bearer {key}"}
            reply = client.post("/v1/completions", json=body, headers=headers).raise_for_status()
            found.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found == [0, 0, 96, 96, 0]
