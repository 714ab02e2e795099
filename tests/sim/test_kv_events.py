"""KV events of a whole engine, read as a program written for vLLM reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import vllm_kv_events as vllm
import zmq
from adapter_writer import write_adapter
from tiny_checkpoint import write_tiny_checkpoint

from quire.adapters import LoRARequest
from quire.errors import ConfigError
from quire.llm import LLM
from quire.params import SamplingParams

END = b"\xff" * 8


def batches(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> list[vllm.KVEventBatch]:
    """All that the publisher keeps."""
    found = []
    with context.socket(zmq.DEALER) as socket:
        socket.rcvtimeo, socket.linger = 20_000, 0
        socket.connect(endpoint)
        socket.send_multipart([b"", bytes(8)])
        while (frames := socket.recv_multipart())[2] != END:
            found.append(msgspec.msgpack.decode(frames[3], type=vllm.KVEventBatch))
    return found


def test_events_of_an_engine(tmp_path: Path) -> None:
    replay = f"ipc://{tmp_path}/replay"
    llm = LLM(
        model=str(write_tiny_checkpoint(tmp_path / "model")), backend="reference",
        max_model_len=128, kv_store_path=str(tmp_path / "kv"), dtype="float32",
        kv_events_config={
            "enable_kv_cache_events": True, "replay_endpoint": replay,
            "endpoint": f"ipc://{tmp_path}/pub",
        },
    )  # fmt: skip
    prompt = list(range(100))
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    llm.llm_engine.engine_core.commands["kv_store_flush"]()
    llm.reset_prefix_cache()
    with zmq.Context() as context:
        events = [event for batch in batches(context, replay) for event in batch.events]
    pool = [event for event in events if getattr(event, "medium", "") == "GPU"]
    tokens: list[int] = []
    parent = None
    for event in pool:
        assert isinstance(event, vllm.BlockStored)
        assert (event.parent_block_hash, event.block_size) == (parent, 16)
        parent = event.block_hashes[-1]
        tokens += event.token_ids
    assert tokens[:100] == prompt
    assert len(tokens) == 7 * 16
    files = [event for event in events if getattr(event, "medium", "") == "STORAGE"]
    known = {one for event in pool for one in event.block_hashes}
    assert files
    assert all(event.ownership == "disk" and event.block_hashes[0] in known for event in files)
    assert any(isinstance(event, vllm.AllBlocksCleared) for event in events)


def test_blocks_of_an_adapter_are_named(tmp_path: Path) -> None:
    replay = f"ipc://{tmp_path}/replay"
    base = write_tiny_checkpoint(tmp_path / "model")
    llm = LLM(
        model=str(base), backend="reference", max_model_len=128, dtype="float32", kv_store=False,
        enable_lora=True, max_lora_rank=8, max_loras=2, disable_log_stats=False,
        kv_events_config={
            "enable_kv_cache_events": True, "replay_endpoint": replay,
            "endpoint": f"ipc://{tmp_path}/pub",
        },
    )  # fmt: skip
    lora = LoRARequest("sql", 3, str(write_adapter(tmp_path / "sql", base)))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [*range(40)]}], params, use_tqdm=False, lora_request=lora)
    llm.generate([{"prompt_token_ids": [*range(40)]}], params, use_tqdm=False)
    with zmq.Context() as context:
        events = [event for batch in batches(context, replay) for event in batch.events]
    assert {event.lora_name for event in events} == {"sql", None}
    metrics = llm.llm_engine.metrics
    assert metrics is not None
    [info] = [
        one for one in metrics.series.metric_set.families if one.name == "vllm:lora_requests_info"
    ]
    assert [*info.series] == [("2", "", "")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"enable": True}, "'enable' is not known"),
        ({"publisher": "kafka", "enable_kv_cache_events": True}, "use zmq or null"),
        ({"enable_kv_cache_events": "yes"}, "must be of type bool"),
        ({"enable_kv_cache_events": True, "endpoint": "localhost:1"}, "must be tcp://HOST:PORT"),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://*:0"}, "must be tcp://HOST:PORT"),
        ({"enable_kv_cache_events": True, "replay_endpoint": "inproc://x"}, "must be tcp://HOST"),
        ({"enable_kv_cache_events": True, "hwm": 0}, "hwm must be from 1"),
        ({"enable_kv_cache_events": True, "topic": "x" * 2000}, "topic must have at most"),
    ],
)
def test_what_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_events_config: .*" + told.replace("*", r"\*")):
        LLM(kv_events_config=given)
