"""Block keys: the same in every process, different where K/V could differ."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys

import pytest

from quire.kvcache import hash_block, model_root, request_root
from quire.kvcache.sequence import extra_of, hash_blocks, request_roots
from quire.protocol import CacheScope, InputRows

ROOT = model_root("model", 16, "bfloat16")


def test_a_key_is_the_documented_digest() -> None:
    wanted = hashlib.sha256(ROOT + struct.pack("<3I", 1, 2, 70000)).digest()
    assert hash_block(ROOT, [1, 2, 70000]) == wanted


def test_another_process_gets_the_same_key() -> None:
    code = (
        "from quire.kvcache import hash_block, model_root, request_root;"
        "root = request_root(model_root('model', 16, 'bfloat16'), salt='s');"
        "print(hash_block(root, [1, 2, 3]).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hash_block(request_root(ROOT, salt="s"), [1, 2, 3]).hex()


def test_whatever_shapes_the_cache_changes_the_key() -> None:
    roots = {
        ROOT,
        model_root("other", 16, "bfloat16"),
        model_root("model", 32, "bfloat16"),
        model_root("model", 16, "int8"),
        model_root("model1", 6, "bfloat16"),
        request_root(ROOT, salt=""),
        request_root(ROOT, salt="a"),
        request_root(ROOT, adapter_digest=b"a"),
        request_root(ROOT, adapter_digest=b"a", salt="a"),
    }
    assert len(roots) == 9
    assert request_root(ROOT) == ROOT


def test_the_part_of_a_salt_before_a_slash_is_the_tenant() -> None:
    of_tenant = request_root(ROOT, salt="a")
    assert request_roots(ROOT, CacheScope()) == (ROOT, ROOT)
    assert request_roots(ROOT, CacheScope("a")) == (of_tenant, of_tenant)
    for salt, within in (("a/", ""), ("a/b", "b"), ("a/b/c", "b/c")):
        scope = CacheScope(salt)
        assert (scope.tenant, scope.within_tenant) == ("a", within)
        assert request_roots(ROOT, scope) == (of_tenant, request_root(of_tenant, salt=within))
    assert request_roots(ROOT, CacheScope(""))[1] != ROOT  # an empty salt is one


def test_a_key_depends_on_parent_tokens_and_extras() -> None:
    first = hash_block(ROOT, [1, 2])
    keys = {
        first,
        hash_block(ROOT, [2, 1]),
        hash_block(ROOT, [1, 2], b"image"),
        hash_block(first, [1, 2]),
        hash_block(request_root(ROOT, salt="a"), [1, 2]),
    }
    assert len(keys) == 5


def test_fewer_tokens_behind_a_parent_have_another_key() -> None:
    """So that what ends within a block is never taken for a full one, of this size or another."""
    tokens = list(range(32))
    keys = {hash_block(ROOT, tokens[:count]) for count in range(1, 33)}
    assert len(keys) == 32


def test_rows_are_named_by_their_digest_and_place() -> None:
    rows = InputRows(first=20, count=30, digest=b"a" * 32)
    extras = {
        extra_of([rows], 0, 16),
        extra_of([rows], 16, 32),
        extra_of([rows], 32, 48),
        extra_of([InputRows(first=21, count=30, digest=b"a" * 32)], 16, 32),
        extra_of([InputRows(first=20, count=30, digest=b"b" * 32)], 16, 32),
        extra_of([InputRows(first=20, count=3, digest=b"a" * 32), rows], 16, 32),
    }
    assert len(extras) == 6
    assert extra_of([rows], 0, 20) == extra_of([rows], 50, 66) == b""
    far = InputRows(first=99, count=3, digest=b"c" * 32)
    assert extra_of([rows, far], 16, 32) == extra_of([rows], 16, 32)


@pytest.mark.parametrize("size", [4, 16, 48, 200])
def test_keys_of_a_whole_text_are_those_of_its_blocks(size: int) -> None:
    """Also of a text whose beginning was hashed before, and of one that goes on differently."""
    tokens = [(7 * n) % 501 for n in range(650)]
    for end in (0, size - 1, size, 130, 260, 517, 650):
        for text in (tokens[:end], tokens[: end // 2] + tokens[1 : end - end // 2]):
            wanted, parent = list[bytes](), ROOT
            for first in range(0, len(text) - size + 1, size):
                parent = hash_block(parent, text[first : first + size])
                wanted.append(parent)
            assert hash_blocks(ROOT, text, size) == wanted
