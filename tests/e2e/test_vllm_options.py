"""Options of vLLM that decide when a server starts, with a real server."""

from __future__ import annotations

from .conftest import StartServer


def test_the_context_is_as_long_as_the_memory_has_room_for(start_server: StartServer) -> None:
    words = {"max_model_len": "auto", "num_gpu_blocks_override": 8, "block_size": 16}
    with start_server(engine=words).client() as client:
        served = client.get("/v1/models").json()["data"][0]["max_model_len"]
        assert served == 128
        for length, status in ((127, 200), (128, 400)):
            body = {"prompt": [65] * length, "max_tokens": 1}
            assert client.post("/v1/completions", json=body).status_code == status
    with start_server(engine={"max_model_len": -1}).client() as client:
        whole = client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert whole == 2048  # the model's own
