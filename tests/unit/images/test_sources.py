"""Which URLs are read: forms that reach into a private network or out of a folder are refused."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from quire.errors import RequestError
from quire.images.config import ImagesConfig
from quire.images.fetch import Fetcher, is_public, public_addresses
from quire.images.sources import ImageSources
from quire.param_checks import base64_bytes


class _Handler(BaseHTTPRequestHandler):
    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path == "/slow":
            with suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.02)
            return
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
            return
        body = b"x" * (2000 if self.path == "/large" else 10)
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    _Handler.seen = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def _local(host: str, port: int) -> list[str]:
    """Allows this machine for two names, as if it were public; checks the others."""
    return ["127.0.0.1"] if host in ("a.test", "b.test") else public_addresses(host, port)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "0.0.0.0", "::1", "fe80::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "100.64.0.1", "fc00::1",
     "fe80::1%eth0", "nonsense"],
)  # fmt: skip
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_are_public() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


def test_nothing_is_fetched_without_domains(port: int) -> None:
    with pytest.raises(RequestError, match="allowed-media-domains"):
        Fetcher(()).fetch(f"http://a.test:{port}/x")
    assert not _Handler.seen


def test_an_allowed_domain_is_fetched_and_redirects_are_checked(port: int) -> None:
    fetcher = Fetcher(("a.test", "localhost"), _local, max_bytes=1000)
    assert fetcher.fetch(f"http://a.test:{port}/x") == b"x" * 10
    assert fetcher.fetch(f"http://a.test:{port}/to//y") == b"x" * 10
    _Handler.seen = []
    for place in ("http://b.test/", "http://127.0.0.1/", "file:///etc/passwd", f"//b.test:{port}/",
                  "http://[", "http://[::1"):  # fmt: skip
        with pytest.raises(RequestError):
            fetcher.fetch(f"http://a.test:{port}/to/{place}")
    assert all(one.startswith("/to/") for one in _Handler.seen)
    with pytest.raises(RequestError, match="public addresses alone"):
        fetcher.fetch(f"http://localhost:{port}/x")
    with pytest.raises(RequestError, match="larger than"):
        fetcher.fetch(f"http://a.test:{port}/large")
    with pytest.raises(RequestError, match="status 404"):
        fetcher.fetch(f"http://a.test:{port}/missing")
    with pytest.raises(RequestError, match="redirects more than"):
        fetcher.fetch(f"http://a.test:{port}/to//to//to//to//to//to//to/")


def test_a_reply_whose_bytes_arrive_one_by_one_ends_at_the_deadline(port: int) -> None:
    with pytest.raises(RequestError, match="did not answer within"):
        Fetcher(("a.test",), _local, timeout_s=0.3).fetch(f"http://a.test:{port}/slow")


@pytest.mark.parametrize(
    "url",
    ["http://b.test/", "http://a.test@b.test/", "http://b.test#@a.test/", "http://a.test\\@b.test/",
     "http://a.test.b.test/", "http://[::1]/", "http://2130706433/", "http://0x7f.1/",
     "http://a.test:0/", "http://a.test:99999/", "http://a.test /", "http://\ta.test/",
     "http://a.tes\u0442/", "http:///x", "https://"],
)  # fmt: skip
def test_urls_that_parsers_read_differently_are_refused(url: str, port: int) -> None:
    del port
    with pytest.raises(RequestError):
        Fetcher(("a.test",), _local).fetch(url)
    assert not _Handler.seen


def test_files_are_read_below_the_folder_alone(tmp_path: Path) -> None:
    folder, secret = tmp_path / "pictures", tmp_path / "secret.png"
    folder.mkdir()
    secret.write_bytes(b"secret")
    (folder / "a b.png").write_bytes(b"picture")
    (folder / "link.png").symlink_to(secret)
    (folder / "inner.png").symlink_to(folder / "a b.png")
    sources = ImageSources.of(ImagesConfig({"image": 1}, local_path=str(folder.resolve())))
    assert sources.read(f"file://{folder}/a%20b.png") == b"picture"
    assert sources.read(f"file://{folder}/inner.png") == b"picture"
    for path in ("link.png", "../secret.png", "%2e%2e/secret.png", "missing.png", "", "a%00b"):
        with pytest.raises(RequestError, match="must point to a file below"):
            sources.read(f"file://{folder}/{path}")
    with pytest.raises(RequestError, match="file:///folder"):
        sources.read(f"file://elsewhere{folder}/a.png")
    with pytest.raises(RequestError, match="allowed-local-media-path"):
        ImageSources.of(ImagesConfig({"image": 1})).read(f"file://{folder}/a%20b.png")


def test_the_files_of_one_request_have_a_limit_together(port: int) -> None:
    url, fetcher = f"http://a.test:{port}/x", Fetcher(("a.test",), _local)
    sources = replace(
        ImageSources.of(ImagesConfig({"image": 2}, download_bytes=25)), fetcher=fetcher
    )
    assert [sources.read(url) for _ in range(2)] == [b"x" * 10] * 2
    with pytest.raises(RequestError, match="VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"):
        sources.read(url)
    assert sources.read("data:image/png;base64,aGk=") == b"hi"
    unlimited = replace(ImageSources.of(ImagesConfig({"image": 2})), fetcher=fetcher)
    assert [unlimited.read(url) for _ in range(4)] == [b"x" * 10] * 4


def test_data_urls_hold_base64() -> None:
    sources = ImageSources.of(ImagesConfig({"image": 1}))
    for text in ("aGk=", "aG\r\nk=\n", " a G\tk = "):  # encoders write lines of 76 characters
        assert sources.read(f"data:image/png;base64,{text}") == b"hi"
    frames = sources.read_frames("data:video/jpeg;base64,aG\nk=,\naGk=")
    assert frames == [b"hi", b"hi"]
    for url in ("data:image/png,hi", "data:image/png;base64,a", "data:image/png;base64"):
        with pytest.raises(RequestError):
            sources.read(url)
    with pytest.raises(RequestError, match="HTTP, data or file URL"):
        sources.read("gopher://a.test/")


def test_blanks_in_base64_take_no_memory_of_their_own() -> None:
    text = "AAAA " * 100_000
    tracemalloc.start()
    try:
        assert len(base64_bytes(text)) == 300_000
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()
