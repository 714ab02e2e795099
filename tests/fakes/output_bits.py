"""`bits_of`: what two outputs have in common if they are the same bit for bit."""

from __future__ import annotations

from quire.outputs import RequestOutput

Bits = tuple[tuple[int, ...], tuple[float, ...]]


def bits_of(output: RequestOutput) -> Bits:
    """The tokens and their log-probabilities."""
    assert output.error is None
    [one] = output.outputs
    assert one.logprobs is not None
    return tuple(one.token_ids), tuple(
        entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)
    )
