"""BlockEvents: whoever follows them knows which blocks the prefix cache has."""

from __future__ import annotations

import random

import msgspec
import vllm_kv_events as vllm
from kv_layouts import layout_of

from quire.adapters.request import LoRARequest
from quire.config.records import CacheConfig
from quire.kvcache import BlockEvents, KVCacheManager
from quire.protocol import CacheScope
from quire.protocol.input_rows import InputRows
from quire.protocol.kv_events import KVEvent, KVEventBatch

SIZE = 4


class Follower:
    """Reads events as a program written for vLLM does."""

    def __init__(self) -> None:
        self.blocks: set[tuple[int, int]] = set()
        self.stored: list[vllm.BlockStored] = []
        self.num_cleared = 0

    def __call__(self, events: list[KVEvent]) -> None:
        data = msgspec.msgpack.encode(KVEventBatch(1.5, events, 0))  # type: ignore[arg-type]
        batch = msgspec.msgpack.decode(data, type=vllm.KVEventBatch)
        assert (batch.ts, batch.data_parallel_rank) == (1.5, 0)
        for event in batch.events:
            if isinstance(event, vllm.BlockStored):
                keys = {(event.group_idx, one) for one in event.block_hashes}
                assert not keys & self.blocks
                self.blocks |= keys
                self.stored.append(event)
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            elif isinstance(event, vllm.BlockRemoved):
                keys = {(event.group_idx, one) for one in event.block_hashes}
                assert keys <= self.blocks
                self.blocks -= keys
            else:
                self.num_cleared += 1
                self.blocks.clear()


def manager(
    follower: Follower, num_blocks: int = 8, window: int | None = None, *, as_int: bool = True
) -> KVCacheManager:
    layout = layout_of(None) if window is None else layout_of(None, window)
    kv = KVCacheManager(CacheConfig(SIZE, num_blocks, "float32", True, 1, layout), 100)
    kv.pool.events.append(BlockEvents(layout, SIZE, follower, as_int=as_int))
    return kv


def low_bits(key: bytes) -> int:
    """`maybe_convert_block_hash` of vLLM."""
    return int.from_bytes(key, byteorder="big") & ((1 << 64) - 1)


def flush(kv: KVCacheManager) -> None:
    [events] = kv.pool.events
    assert isinstance(events, BlockEvents)
    events.flush()


def test_the_fields_of_stored_blocks() -> None:
    follower = Follower()
    kv = manager(follower)
    blocks, tokens = kv.open(CacheScope("salt")), list(range(11))
    assert kv.allocate_slots(blocks, tokens, 0, 5)
    assert kv.allocate_slots(blocks, tokens, 5, 11)
    flush(kv)
    first, second = follower.stored
    hashes = [low_bits(key) for key in blocks.keys]
    assert (first.block_hashes, second.block_hashes) == (hashes[:1], hashes[1:])
    assert (first.parent_block_hash, second.parent_block_hash) == (None, hashes[0])
    assert (first.token_ids, second.token_ids) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert (first.extra_keys, second.extra_keys) == ([("salt",)], [None])
    assert (first.block_size, first.medium) == (4, "GPU")
    assert (first.lora_id, first.lora_name) == (None, None)
    assert (first.group_idx, first.kv_cache_spec_kind) == (0, "full_attention")


def test_whole_hashes() -> None:
    seen: list[KVEvent] = []
    kv = manager(seen.extend, as_int=False)  # type: ignore[arg-type]
    blocks = kv.open()
    kv.allocate_slots(blocks, list(range(8)), 0, 8)
    flush(kv)
    [event] = seen
    assert event.block_hashes == blocks.keys  # type: ignore[attr-defined]
    assert [len(key) for key in blocks.keys] == [32, 32]


def test_whoever_follows_knows_the_pool() -> None:
    chance = random.Random(3)
    for window in (None, 6):
        follower = Follower()
        kv = manager(follower, 24, window)
        prefixes = [[chance.randrange(3) for _ in range(20)] for _ in range(3)]
        for turn in range(300):
            tokens = chance.choice(prefixes)[: chance.randrange(1, 20)]
            tokens = tokens + [turn] * chance.randrange(1, 9)
            blocks = kv.open()
            prefix = kv.get_computed_blocks(blocks, tokens)
            kv.take_hits(blocks, prefix)
            start = prefix.num_entries * SIZE
            while start < len(tokens):
                stop = min(len(tokens), start + chance.randrange(1, 12))
                assert kv.allocate_slots(blocks, tokens, start, stop) is not None
                start = stop
            kv.free(blocks, chance.choice([start, start, start // 2]))
            flush(kv)
            assert follower.blocks == {(g, low_bits(key)) for g, key in kv.pool._by_key}
        assert kv.reset_prefix_cache()
        assert (follower.num_cleared, follower.blocks) == (1, set())


def test_loaded_blocks_are_stored_blocks() -> None:
    follower = Follower()
    kv = manager(follower)
    blocks, tokens = kv.open(), list(range(13))
    keys = [(0, key) for key in kv.keys_of(blocks, tokens, 3)]
    reservation = kv.reservations.reserve(kv.no_prefix(), keys)
    kv.reservations.complete(reservation, keys[:2], blocks, tokens)
    flush(kv)
    [event] = follower.stored
    assert event.block_hashes == [low_bits(key) for key in blocks.keys[:2]]
    assert (event.token_ids, event.parent_block_hash) == (tokens[:8], None)


def test_nobody_is_told_of_a_tail() -> None:
    follower = Follower()
    kv = manager(follower)
    blocks, tokens = kv.open(), list(range(7))
    tail = kv.tail_of(blocks, tokens, 7)
    assert tail is not None
    keys = [(0, blocks.keys[0]), tail.key(0)]
    for takes in (True, False):
        kv.reservations.complete(
            kv.reservations.reserve(kv.no_prefix(), keys), keys, blocks, tokens
        )
        prefix = kv.get_computed_blocks(blocks, tokens, with_tail=True)
        assert prefix.num_tokens(SIZE) == 6
        if takes:
            kv.take_hits(blocks, prefix)
            kv.free(blocks, 6)
        kv.forget(blocks)
        flush(kv)
    other = kv.open()
    # All blocks of the pool, that of the tail too.
    assert kv.allocate_slots(other, list(range(50, 82)), 0, 32) is not None
    flush(kv)
    assert follower.blocks == {(0, low_bits(key)) for key in other.keys}


def test_blocks_of_an_adapter_have_its_name() -> None:
    follower = Follower()
    kv = manager(follower)
    lora = LoRARequest("sql", 3, "/adapters/sql")
    blocks, tokens = kv.open(CacheScope("salt"), "ab", (), lora), list(range(11))
    assert kv.allocate_slots(blocks, tokens, 0, 5)
    assert kv.allocate_slots(blocks, tokens, 5, 11)
    plain = kv.open()
    assert kv.allocate_slots(plain, tokens, 0, 4)
    flush(kv)
    first, second, without = follower.stored
    assert [(one.lora_name, one.lora_id) for one in (first, second)] == [("sql", 3)] * 2
    assert (first.extra_keys, second.extra_keys) == ([("sql", "salt")], [("sql",)])
    assert (without.lora_name, without.lora_id, without.extra_keys) == (None, None, [None])


def test_pictures_are_named_in_their_blocks() -> None:
    follower = Follower()
    kv = manager(follower)
    lora = LoRARequest("sql", 3, "/adapters/sql")
    rows = [InputRows(2, 7, b"\x0a" * 32), InputRows(9, 1, b"\x0b" * 32)]
    blocks, tokens = kv.open(CacheScope("salt"), "ab", rows, lora), list(range(17))
    assert kv.allocate_slots(blocks, tokens, 0, 17)
    flush(kv)
    first, second = "0a" * 32, "0b" * 32
    extra = [keys for event in follower.stored for keys in event.extra_keys or []]
    assert extra == [
        ("sql", [first, 2], "salt"),
        ("sql", [first, -2]),
        ("sql", [first, -6], [second, 1]),
        ("sql",),
    ]


STORED = {
    "type": str, "block_hashes": list, "parent_block_hash": int, "token_ids": list,
    "block_size": int, "lora_id": int, "medium": str, "lora_name": str, "extra_keys": list,
    "group_idx": int, "kv_cache_spec_kind": str,
}  # fmt: skip
"""The fields of `BlockStored` in the order in which llm-d's and Dynamo's readers have them."""
REMOVED = {"type": str, "block_hashes": list, "medium": str, "group_idx": int}


def test_names_and_order_are_those_of_routers() -> None:
    events: list[KVEvent] = []
    kv = manager(events.extend, 3)  # type: ignore[arg-type]
    lora = LoRARequest("sql", 3, "/adapters/sql")
    blocks, tokens = kv.open(lora=lora), list(range(12))
    for start in (0, 4, 8):
        assert kv.allocate_slots(blocks, tokens, start, start + 4)
    kv.free(blocks, 12)
    other = kv.open()
    assert kv.allocate_slots(other, list(range(20, 24)), 0, 4)
    flush(kv)
    kv.pool.events[0].cleared()
    data = msgspec.msgpack.encode(KVEventBatch(1.5, events, 2))  # type: ignore[arg-type]
    ts, maps, rank = msgspec.msgpack.decode(data)
    assert (ts, rank) == (1.5, 2)
    by_type = {one["type"]: one for one in maps}
    stored = [one for one in maps if one["type"] == "BlockStored"][1]
    for one, kinds in ((stored, STORED), (by_type["BlockRemoved"], REMOVED)):
        assert list(one) == list(kinds)
        assert [type(value) for value in one.values()] == [*kinds.values()]
    assert len(stored["extra_keys"]) == len(stored["block_hashes"])
    assert by_type["AllBlocksCleared"] == {"type": "AllBlocksCleared"}
