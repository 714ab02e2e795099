"""Questions about a file: whether it has a tensor, which layers have windows, what is refused."""

from __future__ import annotations

from typing import Any

from quire.errors import UnsupportedModelError
from quire.gguf.architectures.expert_tensors import num_layers
from quire.gguf.keys import Keys


def has_tensor(keys: Keys, name: str) -> bool:
    """Whether there is a tensor of that name."""
    return keys.tensor(name) is not None


def has_part(keys: Keys, part: str) -> bool:
    """Whether the first layer has that tensor."""
    return has_tensor(keys, f"blk.0.{part}")


def has_any(keys: Keys, part: str) -> bool:
    """Whether some layer has that tensor."""
    return any(has_tensor(keys, f"blk.{layer}.{part}") for layer in range(num_layers(keys)))


def attention_layers(keys: Keys, part: str = "attn_k.weight") -> list[bool]:
    """For each layer, whether it has that tensor, which those with attention have."""
    return [has_tensor(keys, f"blk.{layer}.{part}") for layer in range(num_layers(keys))]


def kv_heads(keys: Keys) -> int:
    """The number of heads of K; layers without attention have 0 in the file."""
    heads = keys.whole("{arch}.attention.head_count")
    return keys.largest("{arch}.attention.head_count_kv", heads)


def period_of(keys: Keys, name: str, layers: list[bool]) -> dict[str, Any]:
    """`{name}_period` and `{name}_offset` of config.json, for layers at equal distances. Raises
    UnsupportedModelError for others."""
    places = [layer for layer, one in enumerate(layers) if one]
    if not places:
        return {f"{name}_period": len(layers) + 1, f"{name}_offset": len(layers)}
    period = places[1] - places[0] if len(places) > 1 else len(layers)
    if [layer % period == places[0] for layer in range(len(layers))] != layers:
        raise refused(keys, f"{name}s at unequal distances")
    return {f"{name}_period": period, f"{name}_offset": places[0]}


def biases(keys: Keys) -> dict[str, Any]:
    """Llama's flags."""
    return {
        "attention_bias": has_part(keys, "attn_q.bias"),
        "mlp_bias": has_part(keys, "ffn_up.bias"),
    }


def head_dim(keys: Keys) -> int:
    """H. Raises CheckpointError where it cannot be."""
    heads = keys.whole("{arch}.attention.head_count")
    if heads < 1:
        raise keys.error("{arch}.attention.head_count", "at least 1")
    shared = keys.whole("{arch}.embedding_length") // heads
    found = keys.whole("{arch}.attention.key_length", shared)
    if found < 1:
        raise keys.error("{arch}.attention.key_length", "at least 1")
    return found


def window(keys: Keys) -> int | None:
    """The positions that a layer with a window sees; None: no layer has one."""
    return keys.whole("{arch}.attention.sliding_window", 0) or None


def layer_types(keys: Keys, period: int) -> list[str]:
    """`layer_types` of config.json. `period`: each so many layers one sees all positions, where the
    file does not say."""
    count = num_layers(keys)
    key = "{arch}.attention.sliding_window_pattern"
    slides = keys.value(key)
    if not isinstance(slides, list):
        period = keys.whole(key, period)
        if period < 1:
            raise keys.error(key, "at least 1")
        slides = [(layer + 1) % period != 0 for layer in range(count)]
    slides = slides[:count]  # others are of layers that predict further tokens
    if len(slides) != count or not all(one in (0, 1) for one in slides):
        raise keys.error(key, f"a list of {count} times true or false")
    return ["sliding_attention" if one else "full_attention" for one in slides]


def same_base_in_windows(keys: Keys) -> None:
    """Raises UnsupportedModelError where layers with a window rotate by another base."""
    key = "{arch}.rope.freq_base_swa"
    if keys.value(key) is None:
        return
    if keys.number(key) != keys.number("{arch}.rope.freq_base", 10000.0):
        raise refused(keys, "another base of the rotation in windows (rope.freq_base_swa)")


def refused(keys: Keys, what: str) -> UnsupportedModelError:
    """The error about a model that Quire does not read; the caller raises it."""
    return UnsupportedModelError(
        f"{keys.path}: {what}: GGUF files of architecture {keys.architecture!r:.60} with it are "
        "not read"
    )
