"""Custom logits processors in a server, whichever host its engine is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from running_server import RunningServer, StartServer

import quire

FAKES = Path(__file__).parents[1] / "fakes"
QUIRE = Path(quire.__file__).parents[1]
NAME = "logits_processors:TargetOfRequest"
BODY: dict[str, Any] = {
    "model": "tiny",
    "prompt": "Hello, my name is",
    "max_tokens": 12,
    "temperature": 0,
    "extra_body": {"return_token_ids": True, "ignore_eos": True},
}


def asking(**xargs: Any) -> dict[str, Any]:
    return {**BODY, "extra_body": {**BODY["extra_body"], "vllm_xargs": xargs}}


@pytest.fixture(params=["thread", "process"])
def serving(start_server: StartServer, request: pytest.FixtureRequest) -> RunningServer:
    names = [NAME, "logits_processors:TargetToken"]
    server = start_server(
        engine={"logits_processors": names},
        env={"PYTHONPATH": f"{FAKES}:{QUIRE}"},
        engine_mode=request.param,
    )
    server.may_log_tracebacks = True
    return server


@pytest.fixture
def client(serving: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="-", max_retries=0) as client:
        yield client


@pytest.mark.sweep(1)
def test_arguments_of_a_request_reach_the_processor(client: openai.OpenAI) -> None:
    plain = client.completions.create(**BODY).choices[0].token_ids
    forced = client.completions.create(**asking(target_token=67)).choices[0].token_ids
    assert forced == [67] * 12
    assert client.completions.create(**BODY).choices[0].token_ids == plain != forced
    chat = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
    reply = client.chat.completions.create(
        **chat, extra_body={"return_token_ids": True, "vllm_xargs": {"target_token": 68}}
    )
    assert reply.choices[0].token_ids == [68] * 5

    with pytest.raises(openai.BadRequestError, match=r"target_token value x .* is not int"):
        client.completions.create(**asking(target_token="x"))
    with pytest.raises(openai.InternalServerError, match=f"{NAME} failed: ZeroDivisionError"):
        client.completions.create(**asking(fails_at=3))
    with pytest.raises(openai.BadRequestError, match="logits_processors"):
        client.completions.create(**{**BODY, "extra_body": {"logits_processors": [NAME]}})
    assert client.completions.create(**BODY).choices[0].token_ids == plain


@pytest.mark.long
def test_an_installed_package_and_a_name_that_is_wrong(
    start_server: StartServer, tmp_path: Path
) -> None:
    info = tmp_path / "mine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[vllm.logits_processors]\nmine = {NAME}\n")
    path = f"{tmp_path}:{FAKES}:{QUIRE}"
    server = start_server(env={"PYTHONPATH": path}, engine_mode="process")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
        reply = client.completions.create(**asking(target_token=67))
        assert reply.choices[0].token_ids == [67] * 12
    wrong = start_server(engine={"logits_processors": ["no_such_module:X"]}, wait=False)
    assert wrong.wait() != 0
    assert "importing no_such_module failed" in wrong.lines[-1]
