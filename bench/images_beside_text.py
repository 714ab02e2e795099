"""Time between the tokens of text requests, without and with a stream of requests with images.

Starts `quire serve` with made-up weights of a real shape. Some text requests stream; meanwhile
`--clients` clients send one image after the other, each image another one, so that none is cached.
Prints the median and the 99th percentile of the time between two tokens, and their ratio.

    python bench/images_beside_text.py --shape smolvlm-256m --size 1280x960
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from image_shapes import SHAPES, write_shape


@contextlib.contextmanager
def serving(path: Path, threads: int) -> Iterator[str]:
    """The URL of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "quire", "serve", str(path), "--load-format", "dummy", "--port",
        str(port), "--num-threads", str(threads), "--max-model-len", "4096", "--max-num-seqs", "8",
        "--no-enable-prefix-caching", "--no-speculation",
    ]  # fmt: skip
    server, url = subprocess.Popen(command), f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=1)
                break
            if server.poll() is not None:
                raise SystemExit("the server has ended")
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def post(url: str, body: dict[str, Any]) -> Any:
    """The open reply of a chat."""
    data = json.dumps({"temperature": 0, "ignore_eos": True, **body}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=600)


def text_gaps(url: str, num_streams: int, num_tokens: int) -> list[float]:
    """Seconds between the tokens of some streams, without the first tokens of each."""
    gaps: list[float] = []

    def stream(number: int) -> None:
        content = [{"type": "text", "text": f"Number {number}: tell me a story."}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": num_tokens}
        times = []
        with post(url, {**body, "stream": True}) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
        gaps.extend(np.diff(times[8:]).tolist())

    threads = [threading.Thread(target=stream, args=(one,)) for one in range(num_streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gaps


def send_images(url: str, size: tuple[int, int], seed: int, stop: threading.Event) -> int:
    """One image after the other until `stop`. Returns how many were answered."""
    from PIL import Image

    rng, count = np.random.default_rng(seed), 0
    while not stop.is_set():
        small = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize(size).save(file, "JPEG")
        data = base64.b64encode(file.getvalue()).decode()
        content = [
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}},
            {"type": "text", "text": "What is this?"},
        ]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
        with contextlib.suppress(OSError), post(url, body) as reply:
            reply.read()
            count += 1
    return count


def report(name: str, gaps: list[float]) -> float:
    """Prints the times and returns the 99th percentile."""
    median, high, most = np.percentile(gaps, [50, 99, 100]) * 1e3
    print(f"{name}: median {median:.1f} ms, p99 {high:.1f} ms, most {most:.1f} ms", flush=True)
    return float(high)


def main() -> None:
    """Measures both and prints their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smolvlm-256m")
    parser.add_argument("--size", default="1280x960", help="width x height of the images")
    parser.add_argument("--clients", type=int, default=1, help="clients that send images")
    parser.add_argument("--streams", type=int, default=2, help="text requests at the same time")
    parser.add_argument("--tokens", type=int, default=300, help="tokens of each text request")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        write_shape(args.shape, Path(folder))
        with serving(Path(folder), args.threads) as url:
            text_gaps(url, args.streams, 20)
            alone = report("without images", text_gaps(url, args.streams, args.tokens))
            stop = threading.Event()
            senders = [
                threading.Thread(target=send_images, args=(url, (width, height), seed, stop))
                for seed in range(args.clients)
            ]
            for sender in senders:
                sender.start()
            time.sleep(1)
            with_images = report("next to images", text_gaps(url, args.streams, args.tokens))
            stop.set()
            for sender in senders:
                sender.join()
    print(f"ratio of the 99th percentiles: {with_images / alone:.2f}")


if __name__ == "__main__":
    main()
