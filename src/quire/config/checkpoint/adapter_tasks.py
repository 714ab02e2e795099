"""Adapters that lie in the checkpoint of their base model, each for a task: those of Jina
Embeddings 3. The path of such an adapter is CHECKPOINT/TASK.
"""

from __future__ import annotations

from pathlib import Path

from quire.config.checkpoint.model_files import has_file, read_json_object
from quire.units import MiB

MAX_CONFIG_BYTES = 1 * MiB
_OWN_CONFIG = "adapter_config.json"


def tasks_of(checkpoint: Path) -> list[str]:
    """The tasks that config.json names; empty without a config.json."""
    path = checkpoint / "config.json"
    if not has_file(path):
        return []
    found = read_json_object(path, max_bytes=MAX_CONFIG_BYTES).get("lora_adaptations")
    return [str(one) for one in found] if isinstance(found, list) else []


def has_adapter(path: Path) -> bool:
    """Whether it is the folder of an adapter, or CHECKPOINT/TASK."""
    return has_file(path / _OWN_CONFIG) or (
        not path.exists() and path.name in tasks_of(path.parent)
    )
