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
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SHAPES: dict[str, dict[str, Any]] = {
    "smolvlm-256m": {
        "config": {
            "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3",
            "image_token_id": 258, "scale_factor": 4,
            "text_config": {
                "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
                "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
                "head_dim": 64, "vocab_size": 49280, "max_position_embeddings": 8192,
                "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
            },
            "vision_config": {
                "model_type": "idefics3_vision", "hidden_size": 768, "intermediate_size": 3072,
                "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 512,
                "patch_size": 16,
            },
        },
        "settings": {
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 1,
            "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512},
        },
        "place": "<image>",
        "special": [
            "<fake_token_around_image>", "<image>", "<global-img>",
            *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
        ],
    },
    "qwen2-vl-2b": {
        "config": {
            "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
            "image_token_id": 259, "video_token_id": 260, "vision_start_token_id": 257,
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
            "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "tie_word_embeddings": True,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {
                "model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280, "hidden_size": 1536,
                "mlp_ratio": 4, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
        },
        "settings": {
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711], "min_pixels": 3136,
            "max_pixels": 1003520, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
        },
        "place": "<|vision_start|><|image_pad|><|vision_end|>",
        "special": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    },
}  # fmt: skip
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}PLACE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def write_checkpoint(path: Path, shape: dict[str, Any]) -> None:
    """config.json, settings, a tokenizer of bytes and a template; weights are made up."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<eos>", *shape["special"]]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False, special=True) for one in names])
    tokenizer.save(str(path / "tokenizer.json"))
    config = dict(shape["config"])
    row_token = "<image>" if "<image>" in names else "<|image_pad|>"
    config["image_token_id"] = tokenizer.token_to_id(row_token)
    (path / "config.json").write_text(json.dumps(config))
    (path / "preprocessor_config.json").write_text(json.dumps(shape["settings"]))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (path / "chat_template.jinja").write_text(_TEMPLATE.replace("PLACE", shape["place"]))


@contextlib.contextmanager
def serving(path: Path, threads: int) -> Iterator[str]:
    """The URL of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "quire", "serve", str(path), "--load-format", "dummy", "--port",
        str(port), "--num-threads", str(threads), "--max-model-len", "4096", "--max-num-seqs", "8",
        "--no-enable-prefix-caching",
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
        write_checkpoint(Path(folder), SHAPES[args.shape])
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
            beside = report("beside images", text_gaps(url, args.streams, args.tokens))
            stop.set()
            for sender in senders:
                sender.join()
    print(f"ratio of the 99th percentiles: {beside / alone:.2f}")


if __name__ == "__main__":
    main()
