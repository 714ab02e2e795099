"""Adapters of a server: named as a model, loaded and removed while it runs, refused if wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import write_adapter
from prompt_adapter_writer import write_prompt_adapter
from starlette.requests import Request
from starlette.responses import Response
from tiny_checkpoint import write_tiny_checkpoint

from quire.adapters import (
    AdapterModule,
    AnyAdapterRequest,
    LoRARequest,
    parse_modules,
    parse_prompt_adapters,
)
from quire.adapters.resolvers import FilesystemResolver, LoRAResolver
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError, RequestError
from quire.frontend.online.async_llm import AsyncLLM
from quire.params import SamplingParams
from quire.server.apis import adapters
from quire.server.http.problems import HttpError
from quire.server.served_adapters import ServedAdapters, check_modules

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPT = {"prompt_token_ids": list(range(20, 60))}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base"))


def engine_of(base: Path) -> AsyncLLM:
    return AsyncLLM.from_engine_args(
        EngineArgs(
            str(base), enable_lora=True, dtype="float32", kv_store=False, max_model_len=128,
            backend="reference", enable_prompt_adapter=True, max_prompt_adapter_token=8,
        )
    )  # fmt: skip


async def text_of(engine: AsyncLLM, adapter: AnyAdapterRequest | None, name: str) -> list[int]:
    last: list[int] = []
    kind = "lora_request" if isinstance(adapter, LoRARequest) else "prompt_adapter_request"
    async for output in engine.generate(dict(PROMPT), GREEDY, name, **{kind: adapter}):  # type: ignore[arg-type]
        last = output.outputs[0].token_ids
    return last


def module(name: str, path: Path | str) -> AdapterModule:
    return AdapterModule(name, str(path))


def prompt_module(name: str, path: Path) -> AdapterModule:
    return AdapterModule(name, str(path), is_prompt=True)


async def test_adapters_come_and_go(base: Path, tmp_path: Path) -> None:
    one, two = (write_adapter(tmp_path / f"a{seed}", base, seed) for seed in (1, 2))

    engine, served = engine_of(base), ServedAdapters()
    try:
        plain = await text_of(engine, None, "plain")
        await served.load(engine, module("mine", one), ["base"], in_place=False)
        first = await text_of(engine, served["mine"], "first")
        assert first != plain
        assert await engine.list_loras() == {1}
        with pytest.raises(HttpError, match="has already been loaded"):
            await served.load(engine, module("mine", two), ["base"], in_place=False)
        running = asyncio.create_task(text_of(engine, served["mine"], "running"))
        await asyncio.sleep(0)
        await served.load(engine, module("mine", two), ["base"], in_place=True)
        second = await text_of(engine, served["mine"], "second")
        assert await running in (first, second)
        assert second not in (first, plain)
        assert await engine.list_loras() == {1}
        await served.unload(engine, "mine")
        assert await engine.list_loras() == set()
        assert "mine" not in served
        with pytest.raises(HttpError, match="cannot be found"):
            await served.unload(engine, "mine")
        assert await text_of(engine, None, "plain again") == plain
    finally:
        engine.shutdown()


async def test_wrong_adapters_are_refused_and_the_engine_goes_on(
    base: Path, tmp_path: Path
) -> None:
    good = write_adapter(tmp_path / "inside" / "good", base, 1)
    large = write_adapter(tmp_path / "inside" / "large", base, 1, rank=32)
    outside = write_adapter(tmp_path / "outside", base, 1)
    (tmp_path / "inside" / "link").symlink_to(outside)
    inside = tmp_path / "inside"
    (inside / "broken").mkdir()
    (inside / "broken" / "adapter_config.json").symlink_to("nowhere")
    cases = [
        (module("x", inside / "broken"), "links to nowhere, where there is nothing"),
        (module("x", inside / ("n" * 300) / "x.gguf"), "cannot be read: File name too long"),
        (module("", good), "must be provided"),
        (module("x", ""), "must be provided"),
        (module("base", good), "conflicts with a served base model"),
        (module("x", outside), "must be inside of a folder of --lora-folders"),
        (module("x", inside / ".." / "outside"), "must be inside"),
        (module("x", inside / "link"), "must be inside"),
        (module("x", inside / "nowhere"), "No adapter found for"),
        (module("x", large), "LoRA rank 32 is greater than max_lora_rank 16"),
        (module("n" * 300, good), "must have 1 to 256 printable characters"),
    ]

    engine, served = engine_of(base), ServedAdapters([str(inside)])
    try:
        for one, message in cases:
            with pytest.raises(HttpError) as raised:
                await served.load(engine, one, ["base"], in_place=False)
            assert message in str(raised.value)
            assert [*served] == []
        await served.load(engine, module("x", good), ["base"], in_place=False)
        assert await text_of(engine, served["x"], "x")
    finally:
        engine.shutdown()


async def _missing_folder(base: Path, folder: Path) -> None:
    served, engine = ServedAdapters(), engine_of(base)
    good = served.add(module("good", write_adapter(folder / "good", base, 1)))
    gone = served.add(module("gone", folder / "gone"))
    try:
        await served.load_offered(engine, ["gone", "never", "good"])
        assert await engine.list_loras() == {good.adapter_id}
        with pytest.raises(RequestError, match="'gone' cannot be loaded") as refused:
            await text_of(engine, gone, "1")
        assert refused.value.parameter == "model"
        assert await text_of(engine, None, "2") != await text_of(engine, good, "3")
    finally:
        engine.shutdown()


async def test_the_number_of_added_adapters_is_bounded(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that a resolver found makes room for another; one that a caller loaded does
    not."""
    monkeypatch.setattr("quire.server.served_adapters.MAX_ADDED", 2)
    path = write_adapter(tmp_path / "a", base, 1)

    class Everywhere(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
            assert base_model_name == str(base)
            return LoRARequest(lora_name, 1, str(path))

    engine, served = engine_of(base), ServedAdapters()
    served.resolvers = [Everywhere()]
    served.add(module("option", path))
    try:
        for name in ("one", "two", "three"):
            await served.resolve(engine, name)
        assert list(served) == ["option", "two", "three"]
        await served.load(engine, module("mine", path), ["base"], in_place=False)
        await served.load(engine, module("mine", path), ["base"], in_place=True)
        await served.resolve(engine, "four")
        assert list(served) == ["option", "mine", "four"]
        await served.load(engine, module("yours", path), ["base"], in_place=False)
        for add in (
            lambda: served.load(engine, module("more", path), ["base"], in_place=False),
            lambda: served.resolve(engine, "five"),
        ):
            with pytest.raises(HttpError, match="2 adapters were added, which is the limit"):
                await add()
        await served.unload(engine, "mine")
        await served.resolve(engine, "five")
        assert list(served) == ["option", "yours", "five"]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("name", ["x" * 257, "a\x1b[2J", "a\nb", "\u202e"])
async def test_names_of_adapters_are_bounded_and_printable(name: str, base: Path) -> None:
    for parse, items in (
        (parse_modules, [f"{name}=path"]),
        (parse_modules, [json.dumps({"name": name, "path": "path"})]),
        (parse_prompt_adapters, [f"{name}=path"]),
    ):
        with pytest.raises(ConfigError, match="a name must have 1 to 256 printable characters"):
            parse(items)

    engine: Any = None
    served = ServedAdapters()
    with pytest.raises(HttpError, match="lora_name must have 1 to 256 printable characters"):
        await served.load(engine, module(name, base), [], in_place=False)
    with pytest.raises(HttpError, match="does not exist"):
        await served.resolve(engine, name)


def test_an_offered_adapter_that_is_missing_keeps_no_other_from_loading(
    base: Path, tmp_path: Path
) -> None:
    asyncio.run(_missing_folder(base, tmp_path))


@pytest.mark.parametrize(
    ("items", "names"),
    [
        (["a=/x", "b=y=z"], ["a", "b"]),
        (['{"name": "a", "path": "/x", "base_model_name": "m"}'], ["a"]),
        (['[{"name": "a", "path": "/x"}, {"name": "b", "path": "/y"}]'], ["a", "b"]),
    ],
)
def test_the_spellings_of_lora_modules(items: list[str], names: list[str]) -> None:
    assert [one.name for one in parse_modules(items)] == names


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("a", "Invalid JSON format"),
        ("a=", "path must be"),
        ("=x", "name must be"),
        ('{"name": "a"}', "path must be"),
        (json.dumps({"name": "a", "path": "b", "more": 1}), "Invalid fields"),
        ("a,b=c", "Invalid JSON format"),
    ],
)
def test_wrong_lora_modules(item: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_modules([item])


def test_modules_and_the_engine_must_agree() -> None:
    one = [AdapterModule("a", "b")]
    with pytest.raises(ConfigError, match="add --enable-lora"):
        check_modules("lora", one, ["m"], is_on=False)
    with pytest.raises(ConfigError, match="add --enable-prompt-adapter"):
        check_modules("prompt", one, ["m"], is_on=False)
    with pytest.raises(ConfigError, match="choose another name"):
        check_modules("lora", one, ["a"], is_on=True)
    with pytest.raises(ConfigError, match="given once only"):
        parse_modules(["a=b", "a=c"])
    with pytest.raises(ConfigError, match="given once only"):
        parse_prompt_adapters(["a=b", "a=c"])
    with pytest.raises(ConfigError, match="must be NAME=FOLDER"):
        parse_prompt_adapters(["a"])
    check_modules("lora", one, ["m"], is_on=True)


async def test_prompt_adapters_are_served_next_to_others(base: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    folder = write_prompt_adapter(tmp_path / "prompt", rows)
    good = write_adapter(tmp_path / "good", base, 1)

    engine, served = engine_of(base), ServedAdapters()
    try:
        await served.load_all(engine, [module("lora", good), prompt_module("mine", folder)])
        assert await engine.list_prompt_adapters() == {2}
        plain = await text_of(engine, None, "plain")
        assert await text_of(engine, served["mine"], "mine") != plain
        with pytest.raises(HttpError, match="'mine' is a prompt adapter"):
            await served.load(engine, module("mine", good), ["base"], in_place=True)
        with pytest.raises(HttpError, match="cannot be found"):
            await served.unload(engine, "mine")
        with pytest.raises(ConfigError, match="peft_type must be one of"):
            await served.load_all(engine, [prompt_module("x", good)])
        assert await engine.remove_prompt_adapter(2)
    finally:
        engine.shutdown()


class Failing(LoRAResolver):
    """Cannot be reached."""

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        raise OSError(f"no route to {lora_name} of {base_model_name}")


async def test_resolvers_find_adapters_by_name(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    known = {"base_model_name_or_path": str(base)}
    write_adapter(folder / "good", base, 1, **known)
    write_adapter(folder / "team" / "large", base, 1, rank=32, **known)
    write_adapter(folder / "foreign", base, 1, base_model_name_or_path="another")
    write_adapter(tmp_path / "outside", base, 1, **known)
    (folder / "link").symlink_to(tmp_path / "outside")
    nothing = ["foreign", "link", "../outside", str(tmp_path / "outside"), "nowhere", ".", "a\0b"]

    engine, served = engine_of(base), ServedAdapters()
    served.resolvers = [Failing(), FilesystemResolver(str(folder))]
    try:
        await served.resolve(engine, "good")
        await served.resolve(engine, "good")
        assert [*served] == ["good"]
        assert await engine.list_loras() == {1}
        for name in [*nothing, "n" * 300]:
            with pytest.raises(HttpError, match="does not exist") as raised:
                await served.resolve(engine, name)
            assert raised.value.problem.status == 404
        with pytest.raises(HttpError, match="was found but could not be loaded") as raised:
            await served.resolve(engine, "team/large")
        assert raised.value.problem.status == 400
        assert [*served] == ["good"]
    finally:
        engine.shutdown()


class Slow(LoRAResolver):
    """Answers for one name when it is told to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.may_answer = asyncio.Event()

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        del base_model_name
        if lora_name == self._name:
            await self.may_answer.wait()
        return None


async def test_a_slow_resolver_delays_no_other_name(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    known = {"base_model_name_or_path": str(base)}
    paths = [write_adapter(folder / name, base, 1, **known) for name in ("found", "given")]

    engine, served, slow = engine_of(base), ServedAdapters(), Slow("slow")
    served.resolvers = [slow, FilesystemResolver(str(folder))]
    waiting = asyncio.create_task(served.resolve(engine, "slow"))
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await served.resolve(engine, "found")
            await served.load(engine, module("given", paths[1]), ["base"], in_place=False)
            await served.unload(engine, "found")
        assert [*served] == ["given"]
        assert not waiting.done()
        slow.may_answer.set()
        with pytest.raises(HttpError, match="does not exist"):
            await waiting
    finally:
        waiting.cancel()
        engine.shutdown()


def test_sagemaker_has_its_own_names_of_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    async def keep(http: object, request: object) -> Response:
        del http
        given.append(request)
        return Response()

    monkeypatch.setattr(adapters, "load", keep)
    monkeypatch.setattr(adapters, "unload", keep)
    asked = adapters.SageMakerAdapter(name="a", src="/b")
    http = Request({"type": "http", "path_params": {"name": "a"}})
    asyncio.run(adapters.load_of_sagemaker(http, asked))
    asyncio.run(adapters.unload_of_sagemaker(http))
    assert given == [
        adapters.LoadLoRARequest(lora_name="a", lora_path="/b"),
        adapters.UnloadLoRARequest(lora_name="a"),
    ]
    paths = {(one.method, one.path, one.switch) for one in adapters.ROUTES.endpoints}
    assert {("POST", "/adapters", "adapters"), ("DELETE", "/adapters/{name}", "adapters")} <= paths
