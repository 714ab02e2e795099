"""One server computes a prompt, another one goes on: the K/V moves by way of a shared directory."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

PROMPT = "Answer in one short sentence. Be polite. " * 20 + "The sky is"


def start(role: str, folder: str) -> tuple[str, subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "quire", "serve", "demo", "--port", str(port)]
    options = ["--kv-store-path", folder, "--kv-transfer-config", json.dumps({"kv_role": role})]
    return f"http://127.0.0.1:{port}", subprocess.Popen([*command, *options])


def wait(url: str) -> None:
    while True:
        try:
            urllib.request.urlopen(url + "/health").close()
            return
        except OSError:
            time.sleep(0.1)


def complete(url: str, **fields: object) -> dict:
    body = json.dumps({"prompt": PROMPT, "temperature": 0, **fields}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + "/v1/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        computes, first = start("kv_producer", folder)
        generates, second = start("kv_consumer", folder)
        try:
            wait(computes)
            wait(generates)
            marks = {"do_remote_decode": True}
            handed = complete(computes, max_tokens=1, kv_transfer_params=marks)
            reply = complete(generates, kv_transfer_params=handed["kv_transfer_params"])
            usage = reply["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            print(usage["prompt_tokens"], "tokens,", cached, "of them handed over")
            print(repr(reply["choices"][0]["text"]))
        finally:
            for server in (first, second):
                server.terminate()
            for server in (first, second):
                server.wait()
