"""A model hub of one repository on a local port, as much of it as a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


_PIECE = 1 << 18
_MOST_SENT = 1 << 30
"""A file that never ends does, so that a test fails and the disk is not filled."""


class HubServer:
    """Serves `files` as `repo`; `requests` are the paths that were asked for.

    `is_lfs`: GGUF files have the checksums of large files, and may be asked for from a place on.
    """

    def __init__(self, repo: str, files: dict[str, bytes], *, is_lfs: bool = False) -> None:
        self.repo = repo
        self.files = files
        self.lfs_of: dict[str, bytes] = {}
        """Contents whose checksums are given in place of those that are sent."""
        self.size_of: dict[str, object] = {}
        """Sizes that are given in place of the right ones."""
        self.info: bytes | None = None
        """Given in place of the description of the repository."""
        self.endless: set[str] = set()
        """Files that never end and have no length."""
        self.cut_after: int | None = None
        """Bytes after which a GGUF file's connection is closed."""
        self.range_starts: list[int] = [0]
        self.refusals: list[tuple[int, dict[str, str]]] = []
        """Status and headers of the next answers for paths that end with `refused`."""
        self.refused = ""
        self.num_sent = 0
        """Bytes of contents that were sent."""
        self.pause_s = 0.0
        """Time after each piece of a content."""
        self._num_answers = 0
        self._lock = threading.Lock()
        self._is_lfs = is_lfs
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self) -> None:
        """Until no answer is being sent."""
        while self._num_answers:
            time.sleep(0.01)

    def fetched(self) -> set[str]:
        """The files whose contents were asked for."""
        marker = f"/{self.repo}/resolve/"
        return {path.split("/", 5)[5] for path in self.requests if path.startswith(f"GET {marker}")}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                with hub._lock:
                    hub._num_answers += 1
                try:
                    self._answer(with_body=True)
                finally:
                    with hub._lock:
                        hub._num_answers -= 1

            def _answer(self, with_body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append(f"{self.command} {path}")
                body, headers = hub.answer(path)
                status = 404 if body is None else 200
                if hub.refusals and path.endswith(hub.refused):
                    status, extra = hub.refusals.pop(0)
                    body, headers = b'{"error": "no"}', dict(extra)
                if body is None:
                    body, headers = b'{"error": "no"}', {"X-Error-Code": "RepoNotFound"}
                begin = self.headers.get("Range", "")
                if with_body and begin.startswith("bytes=") and path.endswith(".gguf"):
                    first = int(begin.removeprefix("bytes=").partition("-")[0])
                    hub.range_starts.append(first)
                    headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
                    body, status = body[first:], 206
                self.send_response(status)
                is_endless = any(path.endswith(f"/{name}") for name in hub.endless)
                length = {} if is_endless else {"Content-Length": str(len(body))}
                for key, value in {**headers, **length}.items():
                    self.send_header(key, value)
                self.end_headers()
                while with_body and is_endless and hub.num_sent < _MOST_SENT:
                    if not self._send(bytes(_PIECE)):
                        return
                if with_body:
                    is_cut = hub.cut_after is not None and path.endswith(".gguf")
                    self._send(body[: hub.cut_after] if is_cut else body)

            def _send(self, body: bytes) -> bool:
                for first in range(0, len(body), _PIECE):
                    piece = body[first : first + _PIECE]
                    try:
                        self.wfile.write(piece)
                    except OSError:
                        return False  # the client has gone
                    if "/resolve/" in self.path:
                        hub.num_sent += len(piece)
                    time.sleep(hub.pause_s)
                return True

        return Handler

    def answer(self, path: str) -> tuple[bytes | None, dict[str, str]]:
        api = f"/api/models/{self.repo}"
        if self.info is not None and path.startswith(api):
            return self.info, {"Content-Type": "application/json"}
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [self._sibling(name) for name in self.files]
            info = {"id": self.repo, "sha": COMMIT, "siblings": siblings}
            return json.dumps(info).encode(), {"Content-Type": "application/json"}
        if path.startswith(f"{api}/tree/"):
            tree = [
                {
                    "type": "file",
                    "path": name,
                    "size": self.size_of.get(name, len(data)),
                    "oid": self._etag(data),
                }
                for name, data in self.files.items()
            ]
            return json.dumps(tree).encode(), {"Content-Type": "application/json"}
        for revision in ("main", COMMIT):
            name = path.removeprefix(f"/{self.repo}/resolve/{revision}/")
            if name in self.files:
                data = self.files[name]
                headers = {"ETag": f'"{self._etag(data)}"', "X-Repo-Commit": COMMIT}
                if self._is_lfs and name.endswith(".gguf"):
                    headers["X-Linked-Etag"] = f'"{self._sha256(name)}"'
                    headers["X-Linked-Size"] = str(len(data))
                return data, headers
        return None, {}

    def _sibling(self, name: str) -> dict[str, object]:
        size = self.size_of.get(name, len(self.files[name]))
        if not self._is_lfs or not name.endswith(".gguf"):
            return {"rfilename": name, "size": size, "blobId": self._etag(self.files[name])}
        return {
            "rfilename": name, "size": size, "blobId": self._etag(self.files[name]),
            "lfs": {"sha256": self._sha256(name), "size": size, "pointerSize": 130},
        }  # fmt: skip

    def _sha256(self, name: str) -> str:
        return hashlib.sha256(self.lfs_of.get(name, self.files[name])).hexdigest()

    @staticmethod
    def _etag(data: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
