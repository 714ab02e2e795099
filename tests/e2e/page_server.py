"""A stand-in for the engine's server, so that the page can be tested alone and with any answer.

Serves the real page files with the real headers; the API is a script. Threads, standard
library only. `ScriptedServer.answer` decides what a "model" says.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from quire.server import ui


@dataclass
class Script:
    """What the stand-in does; tests change it between requests."""

    answer: Callable[[dict[str, Any]], Iterator[dict[str, Any]]] = lambda _: say("Hello.")
    delay_s: float = 0.0
    api_key: str | None = None
    refusal: tuple[int, str] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    closed_early: threading.Event = field(default_factory=threading.Event)
    busy: bool = False
    keeps_responses: bool = True
    is_demo: bool = True
    takes_images: bool = False
    takes_audio: bool = False
    transcribes: bool = False
    forms: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths and bodies of the forms that were sent."""
    scoring: str | None = None
    shows_use: bool = True
    adapters: list[str] = field(default_factory=list)
    mcp: dict[str, Any] = field(default_factory=lambda: {"servers": [], "allows_own": False})
    sources: str = "'self'"
    sampling: dict[str, Any] = field(default_factory=lambda: {"model": {}, "chat": {}})


def say(text: str, width: int = 4) -> Iterator[dict[str, Any]]:
    """Deltas that spell a text, a few characters each."""
    for at in range(0, len(text), width):
        yield {"content": text[at : at + width]}


def say_haltingly(text: str) -> Iterator[dict[str, Any]]:
    """The same with a token without text before each piece: half a character, say."""
    for delta in say(text):
        yield {"content": ""}
        yield delta


def ranks(query: str, documents: list[str]) -> list[dict[str, Any]]:
    """Documents by the number of words of the query that they have."""
    words = query.split()
    scores = [sum(word in text for word in words) / len(words) for text in documents]
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    return [{"index": index, "relevance_score": scores[index]} for index in order]


SEGMENTS = [
    (0.0, 2.5, " Good morning."),
    (2.5, 61.0, " The ferry is late,"),
    (61.0, 3725.5, " again."),
]


def said(delay_s: float) -> Iterator[str]:
    """The events of a transcription."""
    kind = "transcript.text"
    for start, end, text in SEGMENTS:
        times = {"start": start, "end": end, "duration": 3725.5}
        yield json.dumps({"type": f"{kind}.delta", "delta": text})
        yield json.dumps({"type": f"{kind}.segment", "text": text, **times})
        time.sleep(delay_s)
    end = {"text": "", "language": "english", "duration": 3725.5}
    yield json.dumps({"type": f"{kind}.done", **end})
    yield "[DONE]"


def live_picture(now: float, *, busy: bool) -> dict[str, Any]:
    """A picture of an engine that breathes: deterministic in `now`."""
    wave = 0.5 + 0.5 * math.sin(now / 3) if busy else 0.0
    used, shared, cached = int(260 * wave), int(40 * wave), 300 + int(80 * wave)
    free = 1024 - used - shared - cached
    cuts = (f"s{shared}", f"c{cached // 2}", f"u{used // 2}", f"c{cached - cached // 2}")
    rest = (f"u{used - used // 2}", f"f{free}")
    return {
        "state": "ready", "model": "quire-demo", "uptime_s": 7512.0 + now,
        "requests": {"running": int(9 * wave), "waiting": int(3 * wave), "max_num_seqs": 128,
                     "finished": {"stop": 1204, "length": 88, "abort": 7, "error": 0,
                                  "repetition": 0}},
        "tokens": {"prompt": 410_233, "cached": 268_112, "generation": 96_310},
        "rates": {"prompt_tokens_per_s": 900 * wave,
                  "generation_tokens_per_s": 196 * wave + 4 * math.sin(now * 5) * wave},
        "latency": {"ttft_s": {"last": 0.03, "p50": 0.041, "p99": 0.182},
                    "itl_s": {"last": 0.01, "p50": 0.012, "p99": 0.0213}},
        "prefix_cache": {
            "queried_tokens": 410_233, "hit_tokens": 268_112, "loaded_tokens": {"disk": 8_112},
        },
        "kv": {"block_size": 16, "num_blocks": 1024, "free": free, "cached": cached,
               "used": used, "shared": shared, "usage": (used + shared) / 1024,
               "blocks_per_cell": 1, "map": "".join(cuts + rest)},
        "drafts": {"num_drafts": 40, "num_tokens": 160, "num_accepted": 90},
        "preemptions": 2,
        "device": "CUDA on a GPU",
    }  # fmt: skip


def model_card(name: str) -> dict[str, Any]:
    """A model as `/v1/models` lists it; one of another name is an adapter."""
    parent = None if name == "quire-demo" or "/" in name else "quire-demo"
    return {"id": name, "object": "model", "parent": parent, "max_model_len": 4096}


def chat_form(body: dict[str, Any]) -> dict[str, Any]:
    """What a request for a response asks for, by the names of a chat request."""
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        if item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item["type"] == "function_call_output":
            messages.append(
                {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            )
        else:
            messages.append({"role": item["role"], "content": item["content"]})
    return {"messages": messages}


class KeptResponse:
    """A response that is made in a thread, and its events."""

    def __init__(self, deltas: Iterator[dict[str, Any]], delay_s: float) -> None:
        self.status = "in_progress"
        self.cancelled = threading.Event()
        self._deltas, self._delay_s = deltas, delay_s
        self._events: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._make, daemon=True).start()

    def cancel(self) -> None:
        self.cancelled.set()

    def events_after(self, after: int) -> Iterator[str]:
        """Nothing, while it waits: the connection may have ended."""
        position = after + 1
        while True:
            with self._news:
                if len(self._events) <= position and not self._has_ended:
                    self._news.wait(0.1)
                new, has_ended = self._events[position:], self._has_ended
            if not new:
                if has_ended:
                    return
                yield ""
            position += len(new)
            yield from new

    @property
    def _has_ended(self) -> bool:
        return self.status != "in_progress"

    def _make(self) -> None:
        self._add("response.created", response={"status": "queued"})
        num_tokens = num_calls = 0
        for delta in self._deltas:
            if self.cancelled.is_set():
                break
            num_tokens += 1
            if "reasoning" in delta:
                self._add("response.reasoning_text.delta", delta=delta["reasoning"])
            elif "tool_calls" in delta:
                [call] = delta["tool_calls"]
                if "id" in call:
                    num_calls += 1
                    item = {"type": "function_call", "call_id": call["id"],
                            "name": call["function"]["name"], "arguments": ""}  # fmt: skip
                    self._add("response.output_item.added", output_index=num_calls, item=item)
                else:
                    self._add(
                        "response.function_call_arguments.delta",
                        output_index=num_calls, delta=call["function"]["arguments"],
                    )  # fmt: skip
            else:
                self._add("response.output_text.delta", delta=delta["content"])
            time.sleep(self._delay_s)
        self._end(num_tokens)

    def _end(self, num_tokens: int) -> None:
        if self.cancelled.is_set():
            with self._news:
                self.status = "cancelled"
                self._news.notify_all()
            return
        usage = {"input_tokens": 48, "output_tokens": num_tokens,
                 "input_tokens_details": {"cached_tokens": 32}}  # fmt: skip
        self._add("response.completed", response={"status": "completed", "usage": usage})
        with self._news:
            self.status = "completed"
            self._news.notify_all()

    def _add(self, kind: str, **fields: Any) -> None:
        with self._news:
            number = len(self._events)
            self._events.append(json.dumps({"type": kind, "sequence_number": number, **fields}))
            self._news.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def log_message(self, *args: object) -> None:
        """Tests want no access log."""

    def do_GET(self) -> None:
        if self.server.is_away.is_set():
            self.close_connection = True
            return
        path = self.path.partition("?")[0]
        name = {"/": "index.html"}.get(path, path.removeprefix("/ui/"))
        if name in ui.FILES:
            headers = ui.headers_of(name, self.server.script.sources)
            self._reply(200, ui.read(name), headers.pop("content-type"), headers)
        elif not self._is_allowed():
            self._json(401, {"error": {"message": "Unauthorized", "code": 401}})
        elif path.startswith("/v1/responses/"):
            self._show_response(path.split("/")[3])
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": self._models()})
        elif path == "/quire/live":
            self._show_engine()
        else:
            self._json(404, {"error": {"message": "Not Found"}})

    def _show_engine(self) -> None:
        if "text/event-stream" in self.headers.get("Accept", ""):
            self._stream(self._pictures())
            return
        uptime_s = time.monotonic() - self.server.started
        picture = {**live_picture(0.0, busy=False), "uptime_s": uptime_s}
        self._json(200, {**picture, "sampling": self.server.script.sampling})

    def _models(self) -> list[dict[str, Any]]:
        return [model_card(name) for name in ("quire-demo", *self.server.script.adapters)]

    def _show_response(self, response_id: str) -> None:
        kept = self.server.responses.get(response_id)
        if kept is None:
            self._json(404, {"error": {"message": f"Response with id {response_id!r} not found"}})
        elif "stream=true" in self.path:
            _, _, after = self.path.partition("starting_after=")
            self._stream(kept.events_after(int(after or -1)))
        else:
            self._json(200, {"id": response_id, "status": kept.status})

    def do_DELETE(self) -> None:
        response_id = self.path.rpartition("/")[2]
        self.server.forgotten.append(response_id)
        kept = self.server.responses.pop(response_id, None)
        if kept is not None and kept.status == "in_progress":
            kept.cancel()
            self.server.cancelled.set()
        self._json(200, {"id": response_id, "deleted": True})

    def do_POST(self) -> None:
        if self.server.is_away.is_set():
            self.close_connection = True
            return
        if self.path.endswith("/cancel"):
            kept = self.server.responses.get(self.path.split("/")[3])
            if kept is not None:
                kept.cancel()
                self.server.cancelled.set()
            self._json(200 if kept else 404, {})
            return
        data, script = self.rfile.read(int(self.headers["Content-Length"])), self.server.script
        if self.path.startswith("/v1/audio/"):
            script.forms.append((self.path, data))
            if script.refusal is None:
                self._stream(said(script.delay_s))
            else:
                self._json(script.refusal[0], {"error": {"message": script.refusal[1]}})
            return
        body = json.loads(data)
        if not self._is_allowed():
            self._json(401, {"error": {"message": "Unauthorized"}})
            return
        asked = {**body, **chat_form(body)} if "input" in body else body
        script.requests.append({"path": self.path, **asked})
        if script.refusal is not None:
            status, message = script.refusal
            self._json(status, {"error": {"message": message}}, {"Retry-After": "3"})
            return
        if self.path == "/tokenize":
            script.requests.pop()
            tokens = body["prompt"].split()
            self._json(200, {"count": len(tokens), "max_model_len": 4096, "tokens": []})
            return
        if self.path == "/v1/rerank":
            self._json(200, {"results": ranks(body["query"], body["documents"])})
            return
        if body.get("background") and not script.keeps_responses:
            script.requests.pop()
            self._json(400, {"error": {"message": "no stored responses", "param": "background"}})
            return
        if "input" in body:
            kept = KeptResponse(script.answer(asked), script.delay_s)
            if body.get("background"):
                self.server.responses[body["request_id"]] = kept
            else:
                script.closed_early = kept.cancelled
            self._stream(kept.events_after(-1), kept if not body.get("background") else None)
            return
        self._stream(self._answer(body))

    def _is_allowed(self) -> bool:
        key = self.server.script.api_key
        return key is None or self.headers["Authorization"] == f"Bearer {key}"

    def _answer(self, body: dict[str, Any]) -> Iterator[str]:
        script, pieces = self.server.script, 0
        for delta in script.answer(body):
            pieces += 1
            choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
            if "chat" not in self.path:
                choice = {"index": 0, "text": delta.get("content", ""), "finish_reason": None}
            yield json.dumps({"choices": [choice]})
            time.sleep(script.delay_s)
        yield json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 48, "completion_tokens": pieces, "total_tokens": 48 + pieces,
                 "prompt_tokens_details": {"cached_tokens": 32}}  # fmt: skip
        yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"

    def _pictures(self) -> Iterator[str]:
        while not self.server.is_closing.is_set():
            now = time.monotonic() - self.server.started
            picture = live_picture(now, busy=self.server.script.busy)
            if not self.server.script.shows_use:
                facts = {name: picture[name] for name in ("state", "model", "uptime_s")}
                picture = {**facts, "kv": None, "shows_use": False}
            script = self.server.script
            picture |= {
                "is_demo": script.is_demo, "takes_images": script.takes_images,
                "takes_audio": script.takes_audio, "transcribes": script.transcribes,
                "scoring": script.scoring, "sampling": script.sampling,
                "models": self._models(), "mcp": script.mcp,
            }  # fmt: skip
            yield json.dumps(picture)
            time.sleep(0.1)

    def _stream(self, events: Iterator[str], source: KeptResponse | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events:
                if self.server.is_away.is_set():
                    break
                if event:
                    self.wfile.write(f"data: {event}\n\n".encode())
                self.wfile.flush()
        except OSError:
            self.server.script.closed_early.set()
            if source is not None:
                source.cancel()

    def _json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self._reply(status, json.dumps(body).encode(), "application/json", headers or {})

    def _reply(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class ScriptedServer(ThreadingHTTPServer):
    """Use as a context manager; `url` is where the page is."""

    allow_reuse_address = True

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = Script()
        self.is_closing = threading.Event()
        self.responses: dict[str, KeptResponse] = {}
        self.forgotten: list[str] = []
        self.cancelled = threading.Event()
        self.is_away = threading.Event()
        """Connections are closed, and no request is answered."""
        self.started = time.monotonic()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def handle_error(self, *args: object) -> None:
        """A browser that closes a connection is no error here."""

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.is_closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
