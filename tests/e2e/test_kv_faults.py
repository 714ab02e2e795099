"""Places of the KV store that are full, broken, slow, damaged or gone, under a real server: every
reply is the right one, and comes in time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import FAULTS
from redis_server import RedisServer
from running_server import RunningServer, StartServer, engine_options
from tcp_proxy import TcpProxy, drip

FAKES = Path(__file__).parents[1] / "fakes"
ON_A_FAULTY_DISK = (str(FAKES / "faulty_disk_server.py"),)
TEXT = "The quick brown fox jumps over the lazy dog. " * 7
PROMPTS = [f"{TEXT}{number}" * 2 for number in range(2)]
MOST_S = 10.0
"""Of a reply. A load of these prompts ends after a quarter of a second, a question to a far tier
after a twentieth; the rest is for a machine that does other things."""
MOST_BYTES = 4 << 20


def ask(server: RunningServer, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 1.0, "seed": 4, "ignore_eos": True}
    with server.client() as client:
        reply = client.post("/v1/completions", json=body).raise_for_status().json()
    return str(reply["choices"][0]["text"])


def counts(server: RunningServer) -> dict[str, dict[str, float]]:
    with server.client() as client:
        found: dict[str, dict[str, float]] = client.get("/kv").raise_for_status().json()["counts"]
    return found


def check(server: RunningServer, wanted: dict[str, str], rounds: int = 2) -> None:
    """Replies to prompts that are stored and to new ones."""
    ask(server, "something else " * 20)  # it learns what computing takes
    for number in range(rounds):
        for prompt, text in wanted.items():
            begin = time.monotonic()
            assert ask(server, prompt) == text
            assert ask(server, f"{number} {prompt}")
            assert time.monotonic() - begin < 2 * MOST_S


@pytest.fixture(scope="module")
def stored(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, RedisServer, dict[str, str]]]:
    """A directory and a Redis server in which the prompts are, and the replies to them."""
    path = tmp_path_factory.mktemp("stored")
    with RedisServer(path) as redis:
        places = {"kv_store_path": str(path / "kv"), "kv_store_url": [redis.url]}
        server = RunningServer({**engine_options(tiny_model), **places}, {"port": 0})
        server.wait_until_serving()
        wanted = {prompt: ask(server, prompt) for prompt in PROMPTS}
        num_bytes = 0.0

        def is_all_there() -> bool:
            nonlocal num_bytes
            before, num_bytes = num_bytes, sum(counts(server).get("store_bytes", {}).values())
            time.sleep(0.3)
            return 0 < num_bytes == before

        server.until(is_all_there)
        server.stop()
        yield path / "kv", redis, wanted


@pytest.fixture
def directory(stored: tuple[Path, RedisServer, dict[str, str]], tmp_path: Path) -> Path:
    """A copy of the directory."""
    return Path(shutil.copytree(stored[0], tmp_path / "kv"))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_disks(fault: str, start_server: StartServer, stored: Any, directory: Path) -> None:
    server = start_server(
        {"kv_store_path": str(directory), "kv_store_size": MOST_BYTES},
        {"FAULTY_DISK": fault},
        program=ON_A_FAULTY_DISK,
        engine_mode="thread",
    )
    check(server, stored[2])
    sizes = [file.stat().st_size for file in directory.rglob("*.kv")]
    assert sum(sizes) <= MOST_BYTES + max(sizes, default=0)
    if fault in ("full", "broken", "unreadable"):
        assert counts(server)["errors"]["disk"]


@contextmanager
def small_file_system(path: Path, num_bytes: int) -> Iterator[None]:
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(path)]
    try:
        is_mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.long
def test_a_full_file_system(start_server: StartServer, stored: Any, tmp_path: Path) -> None:
    """One with room for less than the bound."""
    path = tmp_path / "small"
    with small_file_system(path, 100_000):
        server = start_server({"kv_store_path": str(path / "kv"), "kv_store_size": MOST_BYTES})
        check(server, stored[2], rounds=4)
        assert counts(server)["errors"]["disk"]
        assert [*path.rglob("*.kv")]
        server.stop()


def _nothing(files: list[Path]) -> None:
    assert files


def _flip(files: list[Path]) -> None:
    for file in files:
        data = bytearray(file.read_bytes())
        data[-100] ^= 1
        file.write_bytes(data)


def _truncate(files: list[Path]) -> None:
    for file in files:
        os.truncate(file, file.stat().st_size // 2)


def _remove(files: list[Path]) -> None:
    shutil.rmtree(files[0].parents[2])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("damage", [_nothing, _flip, _truncate, _remove])
def test_files(
    damage: Callable[[list[Path]], None], start_server: StartServer, stored: Any, directory: Path
) -> None:
    """All of them, under a server that knows that they are there."""
    server = start_server({"kv_store_path": str(directory), "kv_store_size": MOST_BYTES})
    damage([*directory.rglob("*.kv")])
    check(server, stored[2])
    found = counts(server)
    assert bool(found.get("corrupt")) == (damage in (_flip, _truncate))
    assert bool(found.get("hit_tokens")) == (damage is _nothing)


def _cut(data: bytes) -> Iterable[bytes]:
    """Small answers arrive, chunks do not."""
    yield data[:300]
    if len(data) > 300:
        raise OSError


def _late(data: bytes) -> Iterable[bytes]:
    time.sleep(1.0)
    yield data


def _wrong(data: bytes) -> Iterable[bytes]:
    """Small answers are right, chunks are not."""
    yield data if len(data) <= 300 else data[:250] + bytes([data[250] ^ 1]) + data[251:]


def _garbage(_: bytes) -> Iterable[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("treat", [_cut, _late, drip, _wrong, _garbage])
def test_a_redis_server(
    treat: Callable[[bytes], Iterable[bytes]], start_server: StartServer, stored: Any
) -> None:
    """That answers late, in part, or wrongly, from some time on."""
    _, redis, wanted = stored
    with TcpProxy(redis.port) as proxy:
        place = [f"redis://127.0.0.1:{proxy.port}"]
        server = start_server({"kv_store_size": 0, "kv_store_url": place})
        proxy.treat = treat
        check(server, wanted)
        found = counts(server)
        if treat in (_cut, _garbage):
            assert found["errors"]["redis"]
        if treat is _wrong:
            assert found["corrupt"]["redis"]


def test_a_redis_server_that_goes(start_server: StartServer, stored: Any, tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        server = start_server({"kv_store_size": 0, "kv_store_url": [redis.url]})
        check(server, stored[2], rounds=1)
        redis.stop()
        check(server, stored[2])
        assert counts(server)["errors"]["redis"]


@pytest.mark.long
def test_a_redis_server_that_refuses(
    start_server: StartServer, stored: Any, tmp_path: Path
) -> None:
    with RedisServer(tmp_path, "--requirepass", "right") as redis:
        place = [redis.url.replace("//", "//:wrong@")]
        server = start_server({"kv_store_size": 0, "kv_store_url": place})
        check(server, stored[2])
        assert counts(server)["errors"]["redis"]
        assert "wrong@" not in server.log()
