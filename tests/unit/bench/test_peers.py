"""The side-by-side benchmark with a peer whose speed is known."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gguf_files import random_tensors, write_model
from helpers.bandwidth import read_bandwidth
from helpers.peer_process import Peer, PeerError, PeerSpec
from helpers.peer_report import chart, table, weight_bytes
from shapes import write_shape
from tiny_checkpoint import write_tiny_checkpoint

CHILD = """
import json, os, sys, time
mode = json.loads(sys.argv[3]).get("mode")
if mode == "die": sys.exit("no such model")
print(json.dumps({"ready": time.time(), "version": "1.2"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if mode == "die later": sys.exit("out of memory")
    if mode == "hang": time.sleep(60)
    if mode == "spin": end = time.time() + 0.2
    tokens = len(request["prompts"]) * request["output_len"] - (mode == "lie")
    print(json.dumps({"seconds": 0.5, "output_tokens": tokens}), flush=True)
    while mode == "spin": pass
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setattr(Peer, "child", child)
    peers: list[Peer] = []

    def start_one(mode: str = "") -> Peer:
        spec = PeerSpec("fake-one", sys.executable, "checkpoint", {"mode": mode})
        peers.append(Peer(spec, tmp_path / "log", timeout_s=60.0))
        return peers[-1]

    yield start_one
    for peer in peers:
        peer.close()


def cpu_seconds(peer: Peer) -> float:
    fields = Path(f"/proc/{peer._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_peer_answers_and_sleeps_in_between(start: Any) -> None:
    peer = start("spin")
    assert peer.version == "1.2"
    assert 0 < peer.start_s < 60
    assert peer.ask([[1, 2]], 3) == 0.5
    before = cpu_seconds(peer)
    time.sleep(0.5)
    assert cpu_seconds(peer) - before < 0.1
    assert peer.resident_bytes() > 2**20


@pytest.mark.parametrize(
    ("mode", "message"),
    [("die later", "out of memory"), ("hang", "did not answer"), ("lie", "made 2 tokens")],
)
def test_a_bad_peer_is_noticed(start: Any, mode: str, message: str) -> None:
    peer = start(mode)
    if mode == "hang":
        peer._timeout_s = 0.2
    with pytest.raises(PeerError, match=message):
        peer.ask([[1]], 3)


def test_a_peer_that_does_not_start_says_why(start: Any) -> None:
    with pytest.raises(PeerError, match="no such model"):
        start("die")


def test_the_report() -> None:
    def row(speed: float) -> dict[str, Any]:
        return {"medians": {"decode": speed}, "shares": [0.7, speed / 50, 0.9], "start_s": 1.0,
                "resident_bytes": 2 * 10**9}  # fmt: skip

    results = {
        "machine": {"processor": "A <fast> one", "cores": 2}, "threads": 2, "rounds": 3,
        "date": "today",
        "bandwidth": [{"sustained": s, "best": 70e9} for s in (50e9, 60e9, 40e9)],
        "peers": {"quire": row(40.0), "vllm": row(20.0), "dead": {"error": "x"}},
    }  # fmt: skip
    text = table(results)
    assert "memory reads 50.0 GB/s (70.0 in the best moments)" in text
    assert "80 %" in text
    assert "70 %" in text
    assert "quire / vllm" in text
    assert "2.00x" in text
    assert "&lt;fast&gt;" in chart(results)


def test_weight_bytes(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert weight_bytes(tmp_path, {}) == 1000
    assert weight_bytes(tmp_path, {"quantization": "int8_w8a8"}) == 507
    assert weight_bytes(tmp_path / "model.safetensors", {}) == 1000


def test_weight_bytes_without_tables_and_experts_that_are_not_read(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, vocab_size=288, hidden_size=64)
    file = tmp_path / "model.safetensors"
    table = 4 * 287 * 64
    assert abs(weight_bytes(tmp_path, {}) - (file.stat().st_size - table)) < 4096  # its header
    write_shape("olmoe-1b-7b", tmp_path / "olmoe")
    active = 16 * (8 * 3 * 2048 * 1024 + 4 * 2048 * 2048 + 64 * 2048) + 50304 * 2048
    assert 2 * active < weight_bytes(tmp_path / "olmoe", {}) < 2.001 * active
    assert weight_bytes(tmp_path / "olmoe", {"quantization": "int4"}) < 0.54 * active


def test_weight_bytes_of_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 48,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    tensors = random_tensors(config)
    file = write_model(tmp_path / "model.gguf", "llama", config, tensors)
    read = 1 - 999 * 48 / sum(tensor.size for tensor in tensors.values())
    assert abs(weight_bytes(file, {}) - read * file.stat().st_size) < 2
    (tmp_path / "other.gguf").write_bytes(bytes(100))
    assert weight_bytes(tmp_path / "other.gguf", {}) == 100


def test_the_probe_reads_faster_than_a_disk() -> None:
    found = read_bandwidth(1, seconds=0.05)
    assert found.best >= found.sustained > 1e8


def test_quire_itself_is_driven(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
    child = Path(__file__).parents[3] / "bench" / "helpers" / "peer_child.py"
    requests = json.dumps({"prompts": [[1, 2, 3], [4, 5]], "output_len": 4}) + "\n"
    done = subprocess.run(
        [sys.executable, str(child), "quire", str(model_dir), '{"max_model_len": 256}'],
        input=requests, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert lines[0]["ready"] > 0
    assert lines[1]["output_tokens"] == 8
    assert lines[1]["seconds"] > 0


@pytest.mark.long
def test_no_engine_outlives_the_benchmark(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
    script = Path(__file__).parents[3] / "bench" / "peers.py"
    settings = 'quire={"max_model_len": 256}'
    parent = subprocess.Popen(
        [sys.executable, str(script), "--model", str(model_dir), "--option", settings,
         "--rounds", "1000", "--workloads", "decode"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    with parent.stdout as lines:
        assert lines.readline().startswith("quire ")
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert children
        parent.kill()
        parent.wait()
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end, "an engine outlived the benchmark"
        time.sleep(0.05)
