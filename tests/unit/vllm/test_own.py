"""What scripts use of vLLM besides the engine."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from vllm import AsyncEngineArgs, EngineArgs, envs
from vllm.distributed.parallel_state import destroy_model_parallel
from vllm.entrypoints.launchers.launcher import serve_http
from vllm.entrypoints.serve.utils.api_utils import with_cancellation
from vllm.envs import get_vllm_port
from vllm.logger import init_logger, suppress_logging
from vllm.platforms import current_platform
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.hf import resolve_chat_template
from vllm.tokenizers import cached_get_tokenizer, get_tokenizer
from vllm.usage.usage_lib import UsageContext
from vllm.utils import FlexibleArgumentParser, random_uuid
from vllm.utils.async_utils import merge_async_iterators
from vllm.utils.counter import Counter
from vllm.utils.network_utils import (
    get_ip,
    get_loopback_ip,
    get_open_port,
    get_open_ports_list,
    get_tcp_uri,
    join_host_port,
    make_zmq_path,
    split_host_port,
    split_zmq_path,
)
from vllm.utils.system_utils import set_ulimit

from quire.config.vllm_variables import variables
from quire.errors import ConfigError
from quire.frontend.inputs.tensors import tensor_of
from quire.server.generation.pooling import numbers


def test_option_names_may_have_underscores() -> None:
    parser = FlexibleArgumentParser(description="a script")
    group = parser.add_argument_group("numbers")
    group.add_argument("--max-tokens", type=int)
    parser.add_argument("--port", type=parser.check_port, default=8000)
    parser.add_argument("prompt")
    args = parser.parse_args(["a_prompt", "--max_tokens=3"])
    assert (args.prompt, args.max_tokens, args.port) == ("a_prompt", 3, 8000)


def test_options_as_on_quires_own_command_line(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("max_tokens: 3\nverbose: true\n")
    parser = FlexibleArgumentParser(prog="script", formatter_class=argparse.HelpFormatter)
    parser.add_argument("--config")
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--overrides", type=json.loads)
    words = ["--config", str(tmp_path / "options.yaml"), "--overrides.a.b=1", "--overrides.c", "x"]
    args = parser.parse_args(words)
    assert (args.max_tokens, args.verbose) == (3, True)
    assert args.overrides == {"a": {"b": 1}, "c": "x"}
    assert parser.parse_args([*words, "--max_tokens", "5"]).max_tokens == 5
    assert parser.parse_known_args([*words, "--other"])[1] == ["--other"]


def test_deprecated_arguments_are_told(caplog: pytest.LogCaptureFixture) -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("--old", type=int, default=1, deprecated=True)
    group = parser.add_argument_group("more")
    group.add_argument("--older-one", deprecated=True)
    with caplog.at_level("WARNING"):
        assert parser.parse_args(["--old", "1"]).old == 1
        assert not caplog.records
        assert parser.parse_args(["--old=2", "--older_one", "x"]).older_one == "x"
    told = [record.getMessage() for record in caplog.records]
    assert told == ["argument 'old' is deprecated", "argument 'older_one' is deprecated"]


def test_a_configuration_file_as_words(tmp_path: Path) -> None:
    file = tmp_path / "options.yml"
    file.write_text(
        "a-b: true\nlist: [x, 2]\nnone: []\nport: 7\nj: {k: [1]}\nno: false\nc: false\n"
    )
    parser = FlexibleArgumentParser()
    parser.add_argument("--c", action=argparse.BooleanOptionalAction)
    parser.add_argument_group("More", "Its first sentence.\n\nMuch more.").add_argument("--x")
    assert "Its first sentence." in parser.format_help()
    assert "Much more" not in parser.format_help()
    words = parser.load_config_file(str(file))
    assert words == ["--a-b", "--list", "x", "2", "--port", "7", "--j", '{"k": [1]}', "--no-c"]
    given = ["--c", "--config", str(file), "--port", "9"]
    parser.add_argument("--port", type=int)
    for name in ("a-b", "none", "no"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--list", nargs="*")
    parser.add_argument("--j", type=json.loads)
    found = parser.parse_args(given)
    assert (found.port, found.c, found.list, found.j) == (9, True, ["x", "2"], {"k": [1]})
    with pytest.raises(ConfigError, match="must be of a yaml/yml type"):
        parser.load_config_file("options.json")
    with pytest.raises(ConfigError, match="No such file"):
        parser.load_config_file("options.yaml")


def test_commands_of_a_script_have_options_of_their_own() -> None:
    parser = FlexibleArgumentParser(prog="script")
    run = parser.add_subparsers(dest="command").add_parser("run")
    run.add_argument("--overrides", type=json.loads)
    args = parser.parse_args(["run", "--overrides.first_key", "2"])
    assert (args.command, args.overrides) == ("run", {"first_key": 2})


def test_the_defaults_of_all_engine_options_make_an_engine() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    options = vars(parser.parse_args(["--max_model_len", "2k", "--model", "m"]))
    made = EngineArgs(**options)
    assert (made.model, made.max_model_len) == ("m", 2000)
    assert (
        AsyncEngineArgs.from_cli_args(
            AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args([])
        ).model
        is None
    )


@pytest.mark.parametrize("port", ["80", "65536", "http", "-1", "१०२४"])
def test_a_port_is_a_number_that_a_program_may_use(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("--port", type=parser.check_port)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--port={port}"])
    assert "port must be from 1024 to 65535" in capsys.readouterr().err


def test_a_message_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = init_logger("a script")
    with caplog.at_level(logging.DEBUG, "a script"):
        for number in (1, 1, 2):
            logger.warning_once("the number %d", number)
        with suppress_logging(logging.WARNING):
            logger.warning("not seen")
        logger.info_once("another", scope="local")
    assert [record.getMessage() for record in caplog.records] == [
        "the number 1", "the number 2", "another",
    ]  # fmt: skip
    assert caplog.records[0].filename == Path(__file__).name


def test_the_platform_is_the_processor() -> None:
    assert current_platform.is_cpu()
    assert current_platform.device_type == "cpu"
    others = (current_platform.is_cuda, current_platform.is_rocm, current_platform.is_unspecified)
    assert not any(is_other() for is_other in others)
    assert current_platform.get_device_name()


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PORT", raising=False)
    assert envs.VLLM_PORT is None
    assert not envs.is_set("VLLM_PORT")
    monkeypatch.setenv("VLLM_PORT", "8001")
    assert envs.VLLM_PORT == 8001
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    assert envs.VLLM_SERVER_DEV_MODE is True
    assert envs.VLLM_TARGET_DEVICE == "cpu"
    assert "VLLM_HOST_IP" in dir(envs)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert envs.VLLM_CPU_KVCACHE_SPACE is None
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    assert envs.VLLM_CPU_KVCACHE_SPACE == 40
    with pytest.raises(AttributeError, match=r"Quire has no vllm\.envs\.VLLM_NCCL_SO_PATH"):
        _ = envs.VLLM_NCCL_SO_PATH
    with pytest.raises(AttributeError, match="VLLM_NO_SUCH_THING"):
        envs.is_set("VLLM_NO_SUCH_THING")


def test_every_variable_that_works_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in variables().items():
        monkeypatch.delenv(name, raising=False)
        if variable.effect == "works":
            getattr(envs, name)


def test_a_tokenizer_without_an_engine(model_dir: Path) -> None:
    tokenizer = get_tokenizer(model_dir, tokenizer_mode="auto", trust_remote_code=True)
    assert tokenizer.decode(tokenizer("naïve").input_ids) == "naïve"
    assert tokenizer.name_or_path == str(model_dir)
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "[user]Hi[assistant]"
    tokenizer.close()
    assert cached_get_tokenizer(model_dir) is cached_get_tokenizer(model_dir)
    with pytest.raises(ConfigError, match="tokenizer_mode='mistral' is not supported; use auto"):
        get_tokenizer(model_dir, tokenizer_mode="mistral")
    with pytest.raises(ConfigError, match="truncation_side is not supported"):
        get_tokenizer(model_dir, truncation_side="left")


def test_the_template_that_a_conversation_gets(model_dir: Path) -> None:
    own = get_tokenizer(model_dir).chat_template
    assert resolve_chat_template(get_tokenizer(model_dir), None, None, model_config=None) == own
    several = SimpleNamespace(chat_template={"default": "one", "tool_use": "two"})
    assert resolve_chat_template(several) == "one"
    assert resolve_chat_template(several, tools=[{}]) == "two"
    assert resolve_chat_template(several, "tool_use") == "two"
    assert resolve_chat_template(several, "{{ messages }}") == "{{ messages }}"
    assert resolve_chat_template(SimpleNamespace(chat_template=None)) is None


def test_a_chat_template_is_a_file_or_a_text(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages }}")
    assert load_chat_template(path) == load_chat_template(str(path)) == "{{ messages }}"
    assert load_chat_template("{{ 1 }}") == "{{ 1 }}"
    assert load_chat_template("plain", is_literal=True) == "plain"
    assert load_chat_template(None) is None
    with pytest.raises(ConfigError, match="neither a file nor a Jinja template"):
        load_chat_template("plain")


def test_small_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PORT", raising=False)
    assert len({random_uuid() for _ in range(100)}) == 100
    assert len(random_uuid()) == 16
    counter = Counter(3)
    assert [next(counter), next(counter)] == [3, 4]
    counter.reset()
    assert next(counter) == 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", get_open_port()))
    with socket.socket() as listener:
        listener.bind(("", 0))
        taken = listener.getsockname()[1]
        monkeypatch.setenv("VLLM_PORT", str(taken))
        assert get_open_port() > taken
        assert get_vllm_port() == envs.VLLM_PORT == taken
        some = get_open_ports_list(3)
        assert len(set(some)) == 3
        assert min(some) > taken
    for wrong, message in (
        ("tcp://10.0.0.1:80", "appears to be a URI"),
        ("65536", "must be a valid integer"),
        ("-1", "must be a valid integer"),
    ):
        monkeypatch.setenv("VLLM_PORT", wrong)
        for ask in (get_open_port, get_vllm_port, lambda: envs.VLLM_PORT):
            with pytest.raises(ConfigError, match=f"VLLM_PORT.*{message}"):
                ask()
    socket.inet_aton(get_ip())
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.7")
    assert get_ip() == "10.0.0.7"
    assert UsageContext("LLM_CLASS") is UsageContext.LLM_CLASS
    set_ulimit(1)
    destroy_model_parallel()


def test_streams_are_merged_and_closed_together() -> None:
    closed = []

    async def count(name: str, limit: int) -> AsyncGenerator[str, None]:
        try:
            for number in range(limit):
                await asyncio.sleep(0)
                yield f"{name}{number}"
            if name == "bad":
                raise ValueError(name)
        finally:
            closed.append(name)

    async def merge(*streams: AsyncGenerator[str, None], most: int = 99) -> list[tuple[int, str]]:
        found = []
        merged = merge_async_iterators(*streams)
        async for item in merged:
            found.append(item)
            if len(found) == most:
                await merged.aclose()
        return found

    found = asyncio.run(merge(count("a", 3), count("b", 1), count("c", 0)))
    assert sorted(found) == [(0, "a0"), (0, "a1"), (0, "a2"), (1, "b0")]
    assert asyncio.run(merge()) == []
    closed.clear()
    assert len(asyncio.run(merge(count("a", 100), count("b", 100), most=5))) == 5
    assert sorted(closed) == ["a", "b"]
    closed.clear()
    with pytest.raises(ValueError, match="bad"):
        asyncio.run(merge(count("a", 100), count("bad", 2)))
    assert sorted(closed) == ["a", "bad"]


class Request:
    """An HTTP request whose client goes away when `gone` is set."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_a_handler_ends_with_its_client() -> None:
    ended = []

    @with_cancellation
    async def handle(seconds: float, raw_request: Request) -> str:
        del raw_request
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        if seconds < 0:
            raise ValueError("negative")
        return "done"

    assert await handle(0, raw_request=Request()) == "done"
    with pytest.raises(ValueError, match="negative"):
        await handle(-1, Request())
    request = Request()
    request.gone.set()
    assert await handle(1000, request) is None
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


def test_an_application_is_served() -> None:
    async def app(scope: dict, receive: object, send: object) -> None:
        del receive
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})

    async def scenario() -> bytes:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = "http://{}:{}/".format(*listener.getsockname())
            serving = asyncio.create_task(serve_http(app, listener, log_level="warning"))
            reply = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        return reply

    assert asyncio.run(scenario()) == b"hello"
    with pytest.raises(ConfigError, match="enable_ssl_refresh"):
        asyncio.run(serve_http(app, enable_ssl_refresh=True))


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [("127.0.0.1", 80, "127.0.0.1:80"), ("::1", 80, "[::1]:80"), ("a.b", 1, "a.b:1")],
)
def test_hosts_with_ports(host: str, port: int, text: str) -> None:
    assert join_host_port(host, port) == text
    assert split_host_port(text) == (host, port)
    assert get_tcp_uri(host, port) == make_zmq_path("tcp", host, port) == f"tcp://{text}"
    assert split_zmq_path(f"tcp://{text}") == ("tcp", host, str(port))


def test_other_addresses_of_zeromq() -> None:
    for scheme in ("ipc", "inproc"):
        path = make_zmq_path(scheme, "/tmp/some_path")
        assert path == f"{scheme}:///tmp/some_path"
        assert split_zmq_path(path) == (scheme, "/tmp/some_path", "")


@pytest.mark.parametrize("text", ["1::2", "a", "a:", "a:1:", "a:1x", "[::1]", "[::1]:x", "[::1]1"])
def test_what_is_no_host_with_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        split_host_port(text)
    for path in (text, f"tcp://{text}"):
        with pytest.raises(ValueError, match="must be tcp://HOST:PORT"):
            split_zmq_path(path)


def test_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_loopback_ip() in ("127.0.0.1", "::1")
    monkeypatch.setenv("VLLM_LOOPBACK_IP", "127.0.0.2")
    assert get_loopback_ip() == "127.0.0.2"


def test_tensors_of_logits_processors() -> None:
    torch = pytest.importorskip("torch")
    from vllm.utils.torch_utils import async_tensor_h2d

    assert async_tensor_h2d([1, 2], dtype=torch.long, device="cpu").tolist() == [1, 2]
    out = torch.zeros(2, dtype=torch.int32)
    assert async_tensor_h2d([3, 4], out=out) is out
    assert out.tolist() == [3, 4]
    with pytest.raises(ValueError, match="pass device='cpu'"):
        async_tensor_h2d([1])


def test_vectors_are_printed_short(capsys: pytest.CaptureFixture[str]) -> None:
    from vllm.utils.print_utils import print_embeddings

    print_embeddings([1.0, 2.0, 3.0, 4.0, 5.0])
    print_embeddings([0.5], prefix="Reward")
    assert capsys.readouterr().out == (
        "Embeddings: [1.0, 2.0, 3.0, 4.0, ...] (size=5)\nReward: [0.5] (size=1)\n"
    )


def test_vectors_are_read_from_the_bytes_of_a_reply() -> None:
    torch = pytest.importorskip("torch")
    from vllm.entrypoints.pooling.utils import (
        MetadataItem,
        build_metadata_items,
        decode_pooling_output,
    )
    from vllm.utils.serial_utils import EMBED_DTYPES, ENDIANNESS

    rows = np.array([[1, -2.5, 3], [0.25, 5, -0.125]], np.float32)
    for dtype in EMBED_DTYPES:
        for order in ENDIANNESS:
            body = b"".join(numbers(row, dtype, order) for row in rows)
            items = build_metadata_items(dtype, order, (3,), 2)
            found = decode_pooling_output(items=items[::-1], body=body)
            assert [one.dtype for one in found] == [EMBED_DTYPES[dtype].torch_dtype] * 2
            assert torch.stack(found).float().numpy().tolist() == rows.tolist()
    assert items[1] == MetadataItem(1, "fp8_e5m2", "big", 3, 6, (3,))


def test_prompt_embeddings_are_written_as_the_server_reads_them() -> None:
    torch = pytest.importorskip("torch")
    from vllm.utils.serial_utils import tensor2base64

    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    found = tensor_of(tensor2base64(rows), "prompt_embeds")
    assert found.astype(np.float32).tolist() == rows.float().tolist()


def test_records_without_effect_are_accepted() -> None:
    from vllm.config import KernelConfig

    EngineArgs(kernel_config=KernelConfig(enable_jit_warmup=False))


def test_the_minor_version_before() -> None:
    from vllm import version

    assert version._prev_minor_version() == "0.32"
    assert version._prev_minor_version_was("0.32")
    assert not version._prev_minor_version_was("0.33")
