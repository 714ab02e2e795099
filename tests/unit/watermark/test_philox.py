"""The pseudorandom numbers: the generator's published vectors, and vLLM's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from quire.watermark.philox import _philox, uniforms


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, int], wanted: tuple[int, ...]
) -> None:
    found = _philox(words(*counter), words(*key))  # type: ignore[arg-type]
    assert tuple(int(one[0]) for one in found) == wanted


def test_numbers_are_vllms() -> None:
    """Given by vLLM 0.32.0 for the same key, contexts and tokens."""
    contexts = np.array([[1, 2, 3, 4], [-1, -1, -1, 7]])
    tokens = np.array([[0, 1, 2, 3, 2047]])
    wanted = [
        [0.5361072421073914, 0.6940827369689941, 0.22023026645183563, 0.7877641320228577,
         0.6318401098251343],
        [0.5896596312522888, 0.10283105820417404, 0.9834407567977905, 0.14913330972194672,
         0.6195415258407593],
    ]  # fmt: skip
    assert uniforms(42, contexts, tokens).tolist() == wanted


@pytest.mark.parametrize("width", [1, 4, 5, 9])
def test_a_number_depends_on_key_context_and_token_alone(width: int) -> None:
    rng = np.random.default_rng(width)
    contexts, tokens = rng.integers(-1, 2**17, (8, width)), rng.integers(0, 2**17, (1, 300))
    key = 2**64 - 3
    found = uniforms(key, contexts, tokens)
    assert found.dtype == np.float32
    assert found.min() > 0
    assert found.max() < 1
    assert abs(found.mean() - 0.5) < 0.03
    alone = uniforms(key, contexts[3:4], tokens[:, 7:8])
    assert alone[0, 0] == found[3, 7]
    assert (uniforms(key - 1, contexts, tokens) != found).mean() > 0.99
    other = contexts.copy()
    other[:, -1] += 1
    assert (uniforms(key, other, tokens) != found).mean() > 0.99
