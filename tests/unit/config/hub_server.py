"""A model hub of one repository on a local port, as much of it as a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves `files` as `repo`; `requests` are the paths that were asked for."""

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        self.repo = repo
        self.files = files
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

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
                self._answer(with_body=True)

            def _answer(self, with_body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append(f"{self.command} {path}")
                body, headers = hub.answer(path)
                self.send_response(404 if body is None else 200)
                if body is None:
                    body, headers = b'{"error": "no"}', {"X-Error-Code": "RepoNotFound"}
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

        return Handler

    def answer(self, path: str) -> tuple[bytes | None, dict[str, str]]:
        api = f"/api/models/{self.repo}"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": self.repo, "sha": COMMIT, "siblings": siblings}
            return json.dumps(info).encode(), {"Content-Type": "application/json"}
        if path.startswith(f"{api}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": self._etag(data)}
                for name, data in self.files.items()
            ]
            return json.dumps(tree).encode(), {"Content-Type": "application/json"}
        for revision in ("main", COMMIT):
            name = path.removeprefix(f"/{self.repo}/resolve/{revision}/")
            if name in self.files:
                data = self.files[name]
                return data, {"ETag": f'"{self._etag(data)}"', "X-Repo-Commit": COMMIT}
        return None, {}

    @staticmethod
    def _etag(data: bytes) -> str:
        return hashlib.sha1(data).hexdigest()
