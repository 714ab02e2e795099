"""Hostile images and URLs against a real server: bombs at once, mutated files, forged addresses."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")

from processes import resident_mib  # noqa: E402
from running_server import RunningServer  # noqa: E402

from quire.cli import main  # noqa: E402


class _Listener(BaseHTTPRequestHandler):
    """A service inside the network, which must not be reached."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture(scope="module")
def inner_port() -> Iterator[int]:
    listener = ThreadingHTTPServer(("", 0), _Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    yield listener.server_address[1]
    listener.shutdown()
    listener.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vision_cases import CASES, IDEFICS3_TEMPLATE

    path = tmp_path_factory.mktemp("attacks") / "model"
    CASES["qwen2-vl"](path)
    template = IDEFICS3_TEMPLATE.replace("{{ '<image>' }}", "<|image_pad|>")
    template = template.replace(
        "{% elif part['type'] == 'image' %}",
        "{% elif part['type'] == 'video' %}<|video_pad|>{% elif part['type'] == 'image' %}",
    )
    (path / "chat_template.jinja").write_text(template)
    return path


_DOMAINS = ["localhost", "127.0.0.1", "2130706433", "metadata.invalid"]


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    engine = {
        "model": str(model), "dtype": "float32", "max_model_len": 512, "num_threads": 1,
        "num_gpu_blocks_override": 100, "served_model_name": "eyes", "enable_mm_embeds": True,
        "allowed_media_domains": _DOMAINS,
    }  # fmt: skip
    running = RunningServer(engine, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def _body(*parts: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": [*parts]}]
    return {"model": "eyes", "max_tokens": 1, "messages": messages}


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _good(kind: str, frames: int = 1) -> bytes:
    pixels = np.random.default_rng(frames).integers(0, 256, (frames, 24, 40, 3)).astype(np.uint8)
    first, *rest = (Image.fromarray(one) for one in pixels)
    file = io.BytesIO()
    more = {"save_all": True, "append_images": rest} if rest else {}
    first.save(file, kind, **more)
    return file.getvalue()


def _bomb(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        code = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + code

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _bombs() -> list[dict[str, Any]]:
    """Bodies with files that are far larger once they are decoded."""
    zeros = zlib.compress(bytes(1 << 24), 1)
    large = _bomb(4096, 4096, zlib.compress(bytes(4096 * (3 * 4096 + 1)), 1))
    animated = io.BytesIO()
    frames = [Image.new("P", (1000, 1000), one) for one in range(20)]
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    video = {"type": "video_url", "video_url": {"url": _data_url(animated.getvalue(), "image/gif")}}
    tensor = io.BytesIO()
    np.save(tensor, np.zeros((1, 64), np.float32))
    claimed = tensor.getvalue().replace(b"(1, 64)", b"(9999999999, 64)"[:7].ljust(7))
    embeds = {"image_embeds": base64.b64encode(claimed).decode(), "image_grid_thw": [1, 2, 2]}
    text = _bomb(4, 4, zeros).replace(b"IEND", b"zTXt" + zeros[:65536] + b"IEND")
    return [
        _body(_image(_data_url(_bomb(60000, 60000, zeros)))),
        _body(_image(_data_url(large))),
        _body(_image(_data_url(_bomb(4, 4, zeros)))),
        _body(_image(_data_url(text))),
        _body(_image(_data_url(_bomb(1, 60000, zeros)))),
        _body(video),
        _body({"type": "image_embeds", "image_embeds": embeds}),
        _body(*[_image(_data_url(_good("PNG")))] * 30),
    ]


@pytest.mark.long
def test_bombs_at_once_are_refused_and_leave_no_memory(server: RunningServer) -> None:
    bodies, healthy = _bombs(), list[int]()
    done = threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not done.wait(0.2):
                healthy.append(client.get("/health").status_code)

    def memory() -> float:
        server.until_idle()
        return sum(map(resident_mib, [server.process.pid, *server.children()]))

    def attack(count: int) -> Counter[int]:
        def send(number: int) -> int:
            with httpx.Client(base_url=server.url, timeout=600) as client:
                body = bodies[number % len(bodies)]
                return int(client.post("/v1/chat/completions", json=body).status_code)

        with ThreadPoolExecutor(count) as pool:
            return Counter(pool.map(send, range(count)))

    attack(24)  # children and caches are there before memory is compared
    before = memory()
    watcher = threading.Thread(target=watch)
    watcher.start()
    codes = attack(200)
    done.set()
    watcher.join()
    assert not [code for code in codes if code >= 500], codes
    assert codes[400]
    assert set(healthy) == {200}
    server.until(lambda: memory() < 1.1 * before)
    with server.client() as client:
        good = _body(_image(_data_url(_good("PNG"))))
        assert client.post("/v1/chat/completions", json=good).status_code == 200


def _mutated(good: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(good[: rng.integers(12, len(good))] if rng.random() < 0.2 else good)
    for place in rng.integers(0, len(data), rng.integers(1, 8)):
        data[place] = rng.integers(0, 256)
    if rng.random() < 0.1:
        begin, end = sorted(rng.integers(0, len(data), 2).tolist())
        data[begin:end] = data[begin:end] * 2
    return bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_mutated_videos_are_answered_or_refused(server: RunningServer, kind: str) -> None:
    rng, good = np.random.default_rng(len(kind)), _good(kind, 3)
    codes = Counter[int]()
    with server.client() as client:
        for _ in range(300):
            part = {"type": "video_url", "video_url": {"url": _data_url(_mutated(good, rng))}}
            reply = client.post("/v1/chat/completions", json=_body(part))
            codes[reply.status_code] += 1
        assert set(codes) == {200, 400}, codes
        assert client.get("/health").status_code == 200


_HOSTS = (
    "localhost", "127.0.0.1", "2130706433", "0x7f000001", "017700000001", "127.1", "0",
    "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "localhost.",
    "LOCALHOST", "127.0.0.1.", "metadata.invalid", "localhost%00.example.com", "127。0。0。1",
    "①②⑦.⓪.⓪.①", "localhost@127.0.0.1", "127.0.0.1@localhost", "user:password@localhost",
    "localhost\\@127.0.0.1", "localhost#@127.0.0.1", "localhost?@127.0.0.1", "localhost/@127.0.0.1",
    "localhost\t", "localhost\n", " localhost", "localhost:80:80",
)  # fmt: skip


def _urls(port: int, folder: Path) -> list[str]:
    """Forms of CVE-2025-6242, CVE-2026-24779, CVE-2026-25960 and CVE-2026-34753."""
    (folder / "secret.png").write_bytes(_good("PNG"))
    urls = [f"{scheme}://{host}:{port}/x.png" for host in _HOSTS for scheme in ("http", "HTTP")]
    return [
        *urls,
        f"http:/localhost:{port}/x", f"http:localhost:{port}/x",
        f"//localhost:{port}/x", f"ftp://localhost:{port}/x",
        f"gopher://localhost:{port}/_GET", f"https://localhost:{port}/x",
        f"file://{folder}/secret.png", f"file://localhost{folder}/secret.png",
        f"FILE://{folder}/secret.png", "file:///proc/self/environ", "file:///dev/zero",
        f"dict://localhost:{port}/", "http://", "http://[", "http://[::1", "",
    ]  # fmt: skip


def test_no_form_of_a_url_reaches_the_inner_network(
    server: RunningServer, inner_port: int, tmp_path: Path
) -> None:
    """In all APIs."""
    _Listener.seen.clear()
    urls = _urls(inner_port, tmp_path)
    with server.client() as client:
        for url in urls:
            parts: list[dict[str, Any]] = [
                _image(url), {"type": "video_url", "video_url": {"url": url}},
            ]  # fmt: skip
            replies = [client.post("/v1/chat/completions", json=_body(one)) for one in parts]
            item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
            body: dict[str, Any] = {"model": "eyes", "input": [item], "max_output_tokens": 1}
            replies.append(client.post("/v1/responses", json=body))
            block = {"type": "image", "source": {"type": "url", "url": url}}
            replies.append(client.post("/v1/messages", json=_body(block)))
            assert [one.status_code for one in replies] == [400] * 4, (url, replies[0].text)
            assert "secret" not in replies[0].text.replace("secret.png", "")
        assert client.get("/health").status_code == 200
    assert not _Listener.seen


_PUBLIC = "93.184.216.34"
_NAMES: dict[str, tuple[str, ...]] = {
    "pictures.test": (_PUBLIC,),
    "loopback.test": ("127.0.0.1",),
    "metadata.test": ("169.254.169.254",),
    "private.test": ("10.1.2.3",),
    "both.test": (_PUBLIC, "127.0.0.1"),
    "six.test": ("::1",),
    "local-six.test": ("fc00::1",),
    "mapped.test": ("::ffff:127.0.0.1",),
    "nat64.test": ("64:ff9b::7f00:1",),
    "sixtofour.test": ("2002:7f00:1::",),
    "teredo.test": ("2001:0:5db8:d822:0:0:80ff:fffe",),  # of a client at 127.0.0.1
}
"""A name server of these tests: all but the first name lead into a private network."""


class _Pictures(BaseHTTPRequestHandler):
    """A public server, which has one picture and redirects to others."""

    places: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        number = self.path.removeprefix("/to/")
        self.send_response(302 if number.isdecimal() else 200)
        if number.isdecimal():
            place = self.places[int(number)].encode().decode("latin-1")
            self.send_header("Location", place)
        self.end_headers()
        self.wfile.write(b"" if number.isdecimal() else _good("PNG"))

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names are those of `_NAMES`, and connections to the public address reach `_Pictures`."""
    public = ThreadingHTTPServer(("127.0.0.1", 0), _Pictures)
    threading.Thread(target=public.serve_forever, args=(0.01,), daemon=True).start()
    resolve, connect = socket.getaddrinfo, socket.create_connection

    def resolved(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host not in _NAMES:
            return resolve(host, port, *args, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in _NAMES[host]]

    def connected(address: Any, *args: Any, **more: Any) -> Any:
        place = public.server_address[:2] if address[0] == _PUBLIC else address
        return connect(place, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(socket, "create_connection", connected)
    yield
    public.shutdown()
    public.server_close()


def test_no_line_of_a_batch_reaches_the_inner_network(
    model: Path, inner_port: int, tmp_path: Path, pictures: None
) -> None:
    """The same forms, names that lead into a private network, and redirects to all of these."""
    del pictures
    _Listener.seen.clear()
    urls = _urls(inner_port, tmp_path)
    urls += [f"http://{name}:{inner_port}/x.png" for name in _NAMES if name != "pictures.test"]
    # A redirect without a host, or without a place, leads back to the public server.
    _Pictures.places = [one for one in urls if "//" in one and one != "http://"]
    wanted = ["http://pictures.test/good.png", *urls]
    wanted += [f"http://pictures.test/to/{number}" for number in range(len(_Pictures.places))]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
         "body": _body(_image(url))}
        for number, url in enumerate(wanted)
    ]  # fmt: skip
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [
        "run-batch", "-i", str(source), "-o", str(target), "--model", str(model),
        "--served-model-name", "eyes", "--dtype", "float32", "--max-model-len", "512",
        "--num-gpu-blocks-override", "100", "--disable-tqdm",
        "--allowed-media-domains", *_DOMAINS, *_NAMES,
    ]  # fmt: skip
    assert main(words) == 0
    first, *others = map(json.loads, target.read_text().splitlines())
    assert first["response"]["status_code"] == 200, first
    assert len(others) == len(wanted) - 1
    for url, one in zip(wanted[1:], others, strict=True):
        assert one["response"]["status_code"] == 400, (url, one)
        assert one["error"]["message"]
    assert not _Listener.seen
