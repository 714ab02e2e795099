"""The `ollama` package pulls, copies, uses and deletes a model of a hub on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import HubServer
from running_server import RunningServer

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH

ollama = pytest.importorskip("ollama")
ASK = [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.mark.long
def test_models_are_pulled_used_and_deleted(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in DEMO_MODEL_PATH.iterdir() if path.is_file()}
    with HubServer("org/small", files) as hub:
        env = {
            "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_CACHE": str(tmp_path / "hub"), "XDG_CONFIG_HOME": str(tmp_path / "settings"),
        }  # fmt: skip
        options = {"allow_model_changes": True, "port": 0, "model_memory_bytes": 3 << 30}
        server = RunningServer(options, {"model": "demo"}, env).wait_until_serving()
        try:
            client = ollama.Client(server.url, timeout=120)
            steps = list(client.pull("org/small", stream=True))
            assert (steps[0].status, steps[-1].status) == ("pulling manifest", "success")
            assert max(step.completed or 0 for step in steps) >= len(files["model.safetensors"])
            assert client.pull("org/small").status == "success"
            with pytest.raises(ollama.ResponseError, match="has no model org/none"):
                client.pull("org/none")
            reply = client.chat("org/small", messages=ASK, options={"temperature": 0})
            assert "42" in reply.message.content
            client.copy("org/small", "mine")
            again = client.chat("mine:latest", messages=ASK, options={"temperature": 0})
            assert again.message.content == reply.message.content
            assert {one.model for one in client.list().models} == {"demo", "org/small", "mine"}
            made = client.create(
                model="brief", from_="org/small", parameters={"num_predict": 2, "num_ctx": 512},
                system="You are brief.", stream=True,
            )  # fmt: skip
            assert [step.status for step in made][-1] == "success"
            whole = client.chat("org/small", messages=ASK)
            short = client.chat("brief", messages=ASK)
            assert (short.eval_count, short.done_reason) == (2, "length")
            assert short.prompt_eval_count > whole.prompt_eval_count
            shown = client.show("brief")
            assert shown.capabilities == client.show("demo").capabilities
            assert "num_predict" in shown.parameters
            assert shown.modelinfo["qwen3.context_length"] == 512
            first = client.generate("demo", "hi", options={"num_predict": 2})
            more = client.generate("demo", "hi", context=first.context, logprobs=True)
            assert more.prompt_eval_count > len(first.context)
            assert more.logprobs
            client.delete("brief")
            client.delete("mine")
            client.delete("org/small")
            with pytest.raises(ollama.ResponseError, match="403"):
                client.delete("demo")
            assert [one.model for one in client.list().models] == ["demo"]
            assert not list((tmp_path / "hub").glob("models--*"))
        finally:
            server.stop()
