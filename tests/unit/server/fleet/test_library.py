"""`/api/pull`, `/api/copy` and `/api/delete` over a fake fleet and a cache of files."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import fake_config
from fake_fleet import make_fleet
from hub_cache import write_repo

from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.aliases import aliases_file, read_aliases, set_alias, settings_of
from quire.config.model_lookup.library import models_of
from quire.config.model_lookup.settings import AliasSettings
from quire.errors import ConfigError
from quire.server.apis.ollama.changes import parse_modelfile
from quire.server.app import build_app
from quire.server.conversation.chat_text import chat_input
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.message import ChatMessage
from quire.server.fleet import library as library_module
from quire.server.fleet import member as member_module
from quire.server.fleet.catalog import CatalogEntry
from quire.server.fleet.library import Pull
from quire.server.fleet.member import Member
from server.conftest import Harness


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("org/added", "org/plain", "org/served"):
        write_repo(tmp_path / "hub", name, {"config.json": b"{}", "model.safetensors": b"1"})
    return tmp_path / "hub"


@pytest.fixture
def harness(tiny_model: Path, hub: Path) -> Harness:
    """Serves `a`; `org/served` since the start; `org/added`, which was pulled."""
    sizes = {"a": 60, "org/served": 10, "org/added": 10}
    assert len(models_of(hub)) == 3
    context, loader = make_fleet(tiny_model, sizes, allow_model_changes=True)
    for member in context.fleet.members:
        member.entry = type(member.entry)(
            (member.name,), EngineArgs(model=member.name), context.args, None
        )
    context.fleet.engine_args = EngineArgs()
    loader.chat = None
    harness = Harness(context, build_app(context, ()))
    harness.app.state.library._added.add("org/added")
    return harness


def delete(harness: Harness, name: str) -> httpx.Response:
    return harness.request("DELETE", "/api/delete", json={"model": name})


def names(harness: Harness) -> list[str]:
    return [one["name"] for one in harness.request("GET", "/api/tags").json()["models"]]


def test_the_routes_need_the_option(tiny_model: Path) -> None:
    context, _ = make_fleet(tiny_model, {"a": 60})
    harness = Harness(context, build_app(context, ()))
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        reply = harness.request(method, path, json={"model": "org/name"})
        assert reply.status_code == 404
        assert "--allow-model-changes" in reply.json()["error"]


def test_a_copy_is_another_name_until_it_is_deleted(harness: Harness) -> None:
    before = harness.context.models[0].fingerprint
    reply = harness.post("/api/copy", {"source": "a:latest", "destination": "mine"})
    assert (reply.status_code, reply.content) == (200, b"")
    assert "mine" in names(harness)
    assert "mine" in read_aliases()
    assert harness.context.target("mine").model is harness.context.models[0]
    assert harness.context.models[0].fingerprint == before
    assert delete(harness, "mine").status_code == 200
    assert "mine" not in names(harness) + list(read_aliases())
    assert delete(harness, "mine").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"source": "a", "destination": "org/served"}, 400, "another model"),
        ({"source": "none", "destination": "b"}, 404, "neither served"),
        ({"source": "a", "destination": "../b"}, 400, "an alias must have"),
        ({"source": "a", "destination": ""}, 400, "destination must be"),
        ({"source": "a" * 300, "destination": "b"}, 400, "source must be"),
    ],
)
def test_copies_that_cannot_be(harness: Harness, body: Any, status: int, text: str) -> None:
    reply = harness.post("/api/copy", body)
    assert (reply.status_code, text in reply.json()["error"]) == (status, True), reply.text
    assert read_aliases() == {}


@pytest.fixture
def plans(harness: Harness, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """The same; models that are added are fakes, which cannot be served at temperature 2."""

    def planned(entry: CatalogEntry, *_: int) -> tuple[Any, int]:
        if (entry.engine.override_generation_config or {}).get("temperature") == 2:
            raise ConfigError("too hot")
        config = fake_config(tiny_model)
        model = dataclasses.replace(
            config.model,
            model=entry.engine.model,
            default_sampling_params=entry.engine.override_generation_config,
        )
        return dataclasses.replace(config, model=model), 10

    monkeypatch.setattr(member_module, "planned", planned)
    return harness


MODELFILE = """# Mario
FROM a
PARAMETER temperature 0.5
PARAMETER stop "x y"
parameter stop z
PARAMETER num_gpu 1
SYSTEM \"\"\"You are Mario.
It is me!\"\"\"
LICENSE MIT
"""


@pytest.mark.parametrize("name", ["small", "small:latest"])
def test_a_model_of_a_folder_keeps_its_settings_in_copies_and_new_models(
    plans: Harness, name: str
) -> None:
    model = plans.context.models[0]
    member = plans.context.fleet.member_of(model)
    model.names = ("small:latest",)
    sampling = {"top_p": 0.5, "max_new_tokens": 9, "stop": ["x"], "stop_token_ids": [1]}
    member.entry = dataclasses.replace(
        member.entry,
        engine=EngineArgs(model="a", override_generation_config=sampling, max_model_len=64),
        server=dataclasses.replace(plans.context.args, system_prompt="Brief."),
    )
    wanted = AliasSettings(
        system_prompt="Brief.", max_model_len=64,
        sampling={"top_p": 0.5, "max_tokens": 9, "stop": ["x"]},
    )  # fmt: skip
    body = {"source": name, "destination": "copied"}
    assert plans.post("/api/copy", body).status_code == 200
    assert settings_of("copied") == wanted
    body = {"model": "made", "from": name, "system": "Long."}
    reply = plans.post("/api/create", body)
    assert reply.status_code == 200, reply.text
    assert settings_of("made") == dataclasses.replace(wanted, system_prompt="Long.")
    assert plans.post("/api/create", {**body, "model": name}).status_code == 400
    assert delete(plans, name).status_code == 403


def test_white_space_and_quotes_of_a_modelfile() -> None:
    text = 'FROM\ta\r\nPARAMETER\ttop_k \t 5\nSYSTEM "a "b" c" \r\nPARAMETER stop "x"\n'
    assert parse_modelfile(text) == {
        "base": "a", "parameters": {"top_k": "5", "stop": ["x"]}, "system": 'a "b" c',
    }  # fmt: skip


def test_a_model_is_made_replaced_copied_and_deleted(plans: Harness) -> None:
    reply = plans.post("/api/create", {"model": "mario:latest", "modelfile": MODELFILE})
    lines = [json.loads(line)["status"] for line in reply.text.splitlines()]
    assert lines[0] == "parameter num_gpu has no effect here"
    assert lines[-1] == "success"
    wanted = AliasSettings(
        system_prompt="You are Mario.\nIt is me!",
        sampling={"temperature": 0.5, "stop": ["x y", "z"]},
    )
    assert settings_of("mario") == wanted
    model = plans.context.target("mario").model
    assert model.args.system_prompt == wanted.system_prompt
    shown = plans.post("/api/show", {"model": "mario"}).json()
    assert shown["system"] == wanted.system_prompt
    assert "PARAMETER temperature 0.5" in shown["modelfile"]
    assert shown["parameters"].count("stop") == 2

    body = {"model": "mario", "from": "mario", "parameters": {"temperature": 0.1}, "stream": False}
    assert plans.post("/api/create", body).json() == {"status": "success"}
    assert plans.context.target("mario").model is not model
    sampling = {**wanted.sampling, "temperature": 0.1}
    wanted = dataclasses.replace(wanted, sampling=sampling)
    assert settings_of("mario") == wanted
    assert plans.post("/api/copy", {"source": "mario", "destination": "luigi"}).status_code == 200
    assert settings_of("luigi") == wanted

    hot = {"model": "mario", "from": "a", "parameters": {"temperature": 2}}
    refused = plans.post("/api/create", hot)
    assert refused.status_code == 400
    assert refused.json()["error"].endswith("cannot be served with these settings: mario: too hot")
    assert settings_of("mario") == wanted
    assert plans.post("/api/create", {**hot, "model": "new"}).status_code == 400
    assert "new" not in [*read_aliases(), *names(plans)]

    assert delete(plans, "luigi").status_code == delete(plans, "mario").status_code == 200
    assert read_aliases() == {}
    assert names(plans) == ["a", "org/served", "org/added"]


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"from": ""}, 400, "from must name a model"),
        ({"model": "", "from": "a"}, 400, "model must be a name"),
        ({"model": "org/served"}, 400, "name of another model"),
        ({"model": "../x"}, 400, "an alias must have"),
        ({"from": "none"}, 404, "neither served"),
        ({"from": "/etc/passwd"}, 404, "neither served"),
        ({"parameters": {"mirostat": 2}}, 400, "mirostat must be"),
        ({"parameters": {"colour": 2}}, 400, "unknown parameter"),
        ({"parameters": {"temperature": [1]}}, 400, "temperature must be a number"),
        ({"template": "### {{ .Prompt }} {{ .X }}"}, 400, "template must be in Jinja, or a Go"),
        ({"adapters": {"a": "b"}}, 400, "--lora-modules"),
        ({"modelfile": "FROM a\nMESSAGE cook hi"}, 400, "messages must be a list of up to 256"),
        ({"messages": [{"role": "cook", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "messages must be a list"),
        ({"messages": ["hi"]}, 400, "messages[0]"),
        ({"modelfile": 'FROM a\nSYSTEM """open'}, 400, "without its closing"),
        ({"modelfile": "FROM a\nCOOK b"}, 400, "no instruction 'COOK'"),
        ({"modelfile": "FROM"}, 400, "a value after FROM"),
        ({"modelfile": "FROM a\nPARAMETER top_k\nSYSTEM b"}, 400, "a value after PARAMETER"),
        ({"modelfile": "\0"}, 400, "no instruction"),
    ],
)
def test_models_that_cannot_be_made(plans: Harness, fields: Any, status: int, text: str) -> None:
    reply = plans.post("/api/create", {"model": "mario", "from": "a", **fields})
    assert (reply.status_code, text in reply.json()["error"]) == (status, True), reply.text
    assert read_aliases() == {}


def test_models_of_the_start_stay(harness: Harness, hub: Path) -> None:
    set_alias("short", "org/served")
    for name in ("a", "org/served", "hf.co/org/served"):
        assert delete(harness, name).status_code == 403, name
    assert delete(harness, "short").status_code == 200
    assert read_aliases() == {}
    assert len(models_of(hub)) == 3


def test_a_model_that_was_pulled_is_unloaded_and_deleted(harness: Harness, hub: Path) -> None:
    context = harness.context
    model = context.target("org/added").model

    async def scenario(client: httpx.AsyncClient) -> None:
        await context.fleet.acquire(model)
        body = {"model": "org/added"}
        assert (await client.request("DELETE", "/api/delete", json=body)).status_code == 409
        context.fleet.release(model)
        assert (await client.request("DELETE", "/api/delete", json=body)).status_code == 200
        assert model.engine is None
        assert (await client.post("/v1/models/load", json=body)).status_code == 404
        await context.fleet.close()

    harness.run(scenario)
    assert [one.name for one in models_of(hub)] == ["org/plain", "org/served"]
    assert delete(harness, "org/plain").status_code == 200
    assert "org/added" not in names(harness)


def test_a_pull_without_a_network_says_why(harness: Harness) -> None:
    reply = harness.post("/api/pull", {"model": "org/none"})
    assert reply.headers["content-type"] == "application/x-ndjson"
    first, last = reply.text.splitlines()
    assert "manifest" in first
    assert "HF_HUB_OFFLINE forbids it" in json.loads(last)["error"]
    for name in ("smollm2:135m", "SmolLM2:135M"):  # names of Ollama
        lines = harness.post("/api/pull", {"model": name}).text.splitlines()
        assert "hf download bartowski/SmolLM2-135M-Instruct-GGUF" in json.loads(lines[-1])["error"]
    for name in ("../x", "--verify", "a" * 200):
        assert harness.post("/api/pull", {"model": name}).status_code == 400, name


def test_pulls_and_their_models_are_bounded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = harness.app.state.library
    pulls = [library.pull("org/x") for _ in range(2)]
    reply = harness.post("/api/pull", {"model": "org/y"})
    assert (reply.status_code, "2 models are being pulled" in reply.text) == (503, True)
    for pull in pulls:
        pull.close()
    monkeypatch.setattr(library_module, "_MAX_ADDED", 1)
    assert "the limit" in harness.post("/api/pull", {"model": "org/y"}).json()["error"]
    assert library._pulls == set()


def test_a_pulled_model_is_offered(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    context = harness.context
    config = context.models[0].planned

    def member(entry: Any, model: Any, share: int, budget: int) -> Member:
        assert (entry.names, share, budget) == (("org/plain",), 25, 100)
        return Member(entry, model, config, 5)

    monkeypatch.setattr(library_module, "make_member", member)

    async def scenario(client: httpx.AsyncClient) -> None:
        await harness.app.state.library._offer("org/plain")
        reply = await client.post("/v1/models/load", json={"model": "org/plain"})
        assert reply.json()["status"]["value"] == "loaded"
        assert (
            'quire:model_loaded{model_name="org/plain"} 1.0' in (await client.get("/metrics")).text
        )
        await context.fleet.close()

    harness.run(scenario)
    assert names(harness)[-1] == "org/plain"


async def test_a_reader_that_goes_ends_the_download() -> None:
    async def offer() -> None:
        raise AssertionError("nothing was fetched")

    closed: list[Pull] = []
    pull = Pull("org/name", offer, closed.append)
    lines = pull.lines()
    first = asyncio.ensure_future(anext(lines))
    while pull._process is None:
        await asyncio.sleep(0.01)
    pull.close()
    with pytest.raises(StopAsyncIteration):
        await first
    assert pull._process.returncode == -9
    assert closed == [pull]


def test_a_damaged_file_of_aliases_is_named_by_routes_that_change_models(plans: Harness) -> None:
    aliases_file().parent.mkdir(parents=True, exist_ok=True)
    aliases_file().write_text("{")
    for route, body in (
        ("/api/pull", {"model": "org/plain"}), ("/api/pull", {"model": "small"}),
        ("/api/copy", {"source": "a", "destination": "b"}),
        ("/api/copy", {"source": "org/plain", "destination": "b"}),
        ("/api/create", {"model": "b", "from": "a"}),
        ("/api/create", {"model": "b", "from": "none"}),
        ("/api/delete", {"model": "none"}), ("/api/delete", {"model": "org/plain"}),
    ):  # fmt: skip
        reply = plans.request("DELETE" if "delete" in route else "POST", route, json=body)
        said = "aliases.json must hold a JSON object of names and models; delete it"
        assert (reply.status_code, said in reply.json()["error"]) == (500, True), (
            route,
            reply.text,
        )
    assert names(plans) == ["a", "org/served", "org/added"]
    assert plans.post("/api/show", {"model": "a"}).status_code == 200
    assert plans.request("GET", "/v1/models").status_code == 200


def test_names_have_a_namespace(plans: Harness, hub: Path) -> None:
    for name in ("me/mario", "me/mario:v1", "me/luigi:latest"):
        made = plans.post("/api/create", {"model": name, "from": "a", "system": "You are Mario."})
        assert made.status_code == 200, made.text
    assert list(read_aliases()) == ["me/luigi", "me/mario", "me/mario:v1"]
    assert plans.post("/api/show", {"model": "me/mario"}).json()["system"] == "You are Mario."
    for name, said in (("org/plain", "is a model of the hub's cache"), ("a/b/c", "at most one /")):
        refused = plans.post("/api/create", {"model": name, "from": "a"})
        assert (refused.status_code, said in refused.json()["error"]) == (400, True), refused.text
    assert delete(plans, "me/mario:v1").status_code == 200
    assert "me/mario:v1" not in read_aliases()
    assert len(models_of(hub)) == 3


CHATML = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""


def test_messages_and_a_template_are_part_of_a_model(plans: Harness, tiny_model: Path) -> None:
    set_alias("base", str(tiny_model))
    text = f'''FROM base
TEMPLATE """{CHATML}"""
SYSTEM Be Mario.
MESSAGE user Who are you?
MESSAGE assistant """It is me!
Mario."""
'''
    assert plans.post("/api/create", {"model": "mario", "modelfile": text}).status_code == 200
    made = settings_of("mario")
    assert made.messages == ("user Who are you?", "assistant It is me!\nMario.")
    assert made.chat_template.startswith("{%- set ns")
    assert "<|im_start|>user" in made.chat_template
    model = plans.context.target("mario").model
    chat = chat_input(
        model, Conversation(messages=[ChatMessage(role="user", content="And Luigi?")])
    )
    assert [(one.role, one.content) for one in chat.messages] == [
        ("system", "Be Mario."), ("user", "Who are you?"), ("assistant", "It is me!\nMario."),
        ("user", "And Luigi?"),
    ]  # fmt: skip
    own = ChatMessage(role="system", content="Be Luigi.")
    chat = chat_input(model, Conversation(messages=[own, ChatMessage(role="user", content="Hi")]))
    assert [one.content for one in chat.messages][:2] == ["Be Luigi.", "Who are you?"]
    shown = plans.post("/api/show", {"model": "mario"}).json()["modelfile"]
    assert "MESSAGE user Who are you?\n" in shown
    for template in ("{% for m in messages %}{{ m.content }}{% endfor %}", "{{ .Prompt }}"):
        body = {"model": "mario", "from": "base", "template": template}
        assert plans.post("/api/create", body).status_code == 200
        assert "messages" in settings_of("mario").chat_template
