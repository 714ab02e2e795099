"""A server with a client beside it: prints what each kind of request leaves for Python's collector.

The server runs as `quire serve` does, on the main thread, with the bundled model. The collector is
off, so that what refers to itself stays until it is asked for. One line of JSON: objects a request.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from quire.cli import main

NUM_REQUESTS = 40
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
CHAT = {"messages": MESSAGES, "max_tokens": 30}
COMPLETION = {"prompt": "a", "max_tokens": 4}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", COMPLETION),
    "stream": ("/v1/completions", {**COMPLETION, "stream": True}),
    "samples": ("/v1/completions", {**COMPLETION, "n": 8, "logprobs": 5, "echo": True}),
    "beams": ("/v1/completions", {**COMPLETION, "n": 2, "use_beam_search": True}),
    "choice": ("/v1/completions", {**COMPLETION, "structured_outputs": {"choice": ["a", "b"]}}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat, streamed": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": TOOLS}),
    "a tool": ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": "required"}),
    "JSON": ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 8, "store": False}),
    "messages": ("/v1/messages", CHAT),
    "tokens": ("/tokenize", {"prompt": "a"}),
    "refused": ("/v1/completions", {"prompt": "a", "max_tokens": -4}),
    "too long": ("/v1/completions", {"prompt": [5] * 5000}),
}


def post(path: str, body: dict[str, Any], count: int) -> None:
    """Sends a request several times, one after the other."""
    for _ in range(count):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                reply.read()
        except urllib.error.HTTPError as error:
            error.close()


def ask() -> None:
    """Waits for the server, sends all kinds, prints, and ends the process."""
    while True:
        try:
            with urllib.request.urlopen(URL + "/health", timeout=1):
                break
        except OSError:
            time.sleep(0.05)
    found = {}
    gc.disable()
    for name, (path, body) in KINDS.items():
        post(path, body, 10)  # what is made once, and stays
        gc.collect()
        post(path, body, NUM_REQUESTS)
        found[name] = gc.collect() / NUM_REQUESTS
    print(json.dumps(found), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


PORT = sys.argv[1]
URL = f"http://127.0.0.1:{PORT}"
threading.Thread(target=ask, daemon=True).start()
sys.exit(main(["serve", "--port", PORT]))
