"""The KV store of servers: what one process has computed, the next one loads; nothing that happens
to the place fails a request or changes a token."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from running_server import RunningServer, StartServer

from quire.kvstore.directory import check
from quire.kvstore.tiers import disk_files

NUM_KILLS = 100
TEXT = "The quick brown fox jumps over the lazy dog. " * 7
BODY = {"prompt": TEXT, "max_tokens": 12, "temperature": 1.0, "seed": 4, "ignore_eos": True}


def ask(server: RunningServer, **changes: Any) -> tuple[str, int]:
    """The text of a reply, and how many tokens of the prompt were cached."""
    with server.client() as client:
        reply = client.post("/v1/completions", json={**BODY, **changes}).raise_for_status().json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def stored(server: RunningServer, tier: str = "disk") -> float:
    """Bytes that were written to a tier."""
    with server.client() as client:
        counts = client.get("/kv").raise_for_status().json()["counts"]
    return float(counts.get("store_bytes", {}).get(tier, 0))


@pytest.fixture
def wanted(server: RunningServer) -> str:
    """The text of a server that stores nothing."""
    return ask(server)[0]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_killed_server_is_remembered(
    start_server: StartServer, tmp_path: Path, wanted: str, mode: str
) -> None:
    options = {"kv_store_path": str(tmp_path / "kv")}
    first = start_server(options, engine_mode=mode)
    assert ask(first) == (wanted, 0)
    first.until(lambda: stored(first) > 0)
    time.sleep(0.3)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = start_server(options, engine_mode=mode)
    text, num_cached = ask(second)
    assert text == wanted
    assert num_cached >= 256
    hits = 'quire:kv_store_hit_tokens_total{engine="0",model_name="tiny",tier="disk"}'

    def is_counted() -> bool:  # told once in a second
        ask(second)
        return second.metrics().get(hits, 0.0) >= 256

    second.until(is_counted)


_COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
_OTHER_KINDS: dict[str, dict[str, Any]] = {
    "states": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    },
    "latents": {
        "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "kv_lora_rank": 32,
        "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    },
}  # fmt: skip
"""Models whose layers keep something else than K and V."""


@pytest.mark.long
@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", _OTHER_KINDS)
def test_states_and_latents_outlive_an_engine_process(
    start_server: StartServer, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    """A server is killed in a conversation; the next one goes on where it ended, with the same
    text as one that stores nothing."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    kept = {name: config[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    (model / "config.json").write_text(json.dumps({**_COMMON, **_OTHER_KINDS[kind], **kept}))
    (model / "model.safetensors").unlink(missing_ok=True)
    engine = {"model": str(model), "load_format": "dummy"}
    plain = start_server(engine)
    first_text, _ = ask(plain)
    follow = f"{TEXT}{first_text} And what did the dog say?"
    second_text, _ = ask(plain, prompt=follow)
    options = {**engine, "kv_store_path": str(tmp_path / "kv")}
    first = start_server(options, engine_mode="process")
    assert ask(first) == (first_text, 0)
    first.until(lambda: stored(first) > 0)
    time.sleep(0.3)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = start_server(options, engine_mode="process")
    text, num_cached = ask(second, prompt=follow)
    assert text == second_text
    assert num_cached >= 128


def test_two_servers_share_a_directory(
    start_server: StartServer, tmp_path: Path, wanted: str
) -> None:
    options = {"kv_store_path": str(tmp_path / "kv")}
    first, second = start_server(options), start_server(options)
    assert ask(first) == (wanted, 0)
    first.until(lambda: stored(first) > 0)

    def is_found() -> bool:  # the second one looks now and then
        text, num_cached = ask(second, cache_salt=None)
        assert text == wanted
        return num_cached > 0

    second.until(is_found, timeout_s=30)


def test_two_servers_share_a_redis(start_server: StartServer, tmp_path: Path, wanted: str) -> None:
    with RedisServer(tmp_path) as redis:
        options = {"kv_store_size": 0, "kv_store_url": [redis.url]}
        first = start_server(options)
        assert ask(first) == (wanted, 0)
        first.until(lambda: stored(first, "redis") > 0)
        time.sleep(0.5)
        second = start_server(options)
        text, num_cached = ask(second)
        assert text == wanted
        assert num_cached >= 256
        # Without it, requests go on as if there was no store.
        redis.stop()
        for number in range(4):
            assert ask(second, prompt=f"{number} {TEXT}")[0]
        assert ask(second)[0] == wanted


@pytest.mark.long
def test_whatever_happens_to_the_directory(
    start_server: StartServer, tmp_path: Path, wanted: str
) -> None:
    """Files that are damaged, cut short or gone, and a directory that is gone."""
    path = tmp_path / "kv"
    options = {"kv_store_path": str(path)}
    first = start_server(options)
    assert ask(first) == (wanted, 0)
    first.until(lambda: stored(first) > 0)
    time.sleep(0.5)
    first.stop()
    files = sorted(path.rglob("*.kv"))
    assert len(files) > 3
    files[0].unlink()
    os.truncate(files[1], 5000)
    damaged = bytearray(files[2].read_bytes())
    damaged[-7] ^= 1
    files[2].write_bytes(damaged)
    second = start_server(options)
    assert ask(second)[0] == wanted
    shutil.rmtree(path)
    assert ask(second, prompt=TEXT[3:])[0]
    third = start_server(options)
    assert ask(third)[0] == wanted


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_server_that_is_killed_a_hundred_times(
    start_server: StartServer, tmp_path: Path, wanted: str
) -> None:
    """At any moment while chunks are written. Every reply is right, the bound holds for what the
    killed ones leave, and what was written before is found."""
    path, most = tmp_path / "kv", 1 << 20
    options = {"kv_store_path": str(path), "kv_store_size": most}
    chance, num_found = random.Random(8), 0
    for _ in range(NUM_KILLS):
        server = start_server(options)
        text, num_cached = ask(server)
        assert text == wanted
        num_found += num_cached > 0
        for number in range(chance.randrange(1, 4)):
            assert ask(server, prompt=f"{chance.random()} {number} {TEXT}")[0]
        time.sleep(chance.random() * 0.05)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        files = [file for file in path.rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in files if file.suffix == ".kv") <= most
        assert len([file for file in files if file.suffix != ".kv"]) < 10
    assert num_found > NUM_KILLS / 2
    stored_files = [*disk_files.scan(path)]
    assert stored_files
    assert [found for file in stored_files if (found := check(path, file))] == []


def test_keys_of_an_api_never_share(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server({"kv_store_path": str(tmp_path / "kv")}, api_key=["one", "two"])

    def cached(key: str) -> int:
        with server.client() as client:
            headers = {"Authorization": f"Bearer {key}"}
            reply = client.post("/v1/completions", json=BODY, headers=headers).json()
        return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(key) for key in ("one", "two", "one", "two")][:2] == [0, 0]
    assert cached("one") >= 256
