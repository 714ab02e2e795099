"""Reads files of options, in YAML or JSON: `--config` and `--models`.

Bytes, values and depth have limits, so that a mistake in a file takes neither memory nor time.
Knows none of the options.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from quire.config.checkpoint.model_files import parse_json_object, read_bytes
from quire.errors import CheckpointError, ConfigError, quoted
from quire.units import KiB

_MAX_BYTES = 64 * KiB
"""PyYAML reads about so much in a second."""
_MAX_VALUES = 20_000
_MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses brackets that are nested too deeply, over which PyYAML takes a second."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level >= _MAX_DEPTH:
            raise RecursionError
        super().fetch_flow_collection_start(token)


def read_config(path: Path, option: str = "--config") -> dict[str, Any]:
    """The options of a YAML or JSON file, which `option` names. Raises ConfigError."""
    try:
        raw = read_bytes(path, max_bytes=_MAX_BYTES)
        values = parse_json_object(raw, str(path)) if path.suffix == ".json" else _parse_yaml(raw)
    except CheckpointError as error:
        raise ConfigError(f"{option} {error}") from None
    except (ConfigError, yaml.YAMLError) as error:
        raise ConfigError(f"{option} {path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{option} {path}: expected `option: value` lines")
    return values


def _parse_yaml(raw: bytes) -> Any:
    """Raises YAMLError, and ConfigError for valid YAML that must not be used."""
    try:
        loader = _Loader(raw)
        root = loader.get_single_node()
        if root is None:
            return None
        _check(root)
        return loader.construct_document(root)
    except RecursionError:
        raise ConfigError(f"must have at most {_MAX_DEPTH} levels") from None
    except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        # PyYAML's own classes do not check what a number, a date or a tagged value looks like.
        raise ConfigError(f"every value must be valid for its type: {error}") from None


def _check(root: yaml.Node) -> None:
    """Refuses repeated keys, and aliases that stand for much, or for what they are part of."""
    waiting, num_values = [(root, 1)], 1
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, yaml.ScalarNode):
            continue
        children = node.value
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            key, count = next(iter(Counter(keys).most_common(1)), ("", 0))
            if count > 1:
                raise ConfigError(f"the key {quoted(key)} must be given once:{node.start_mark}")
            children = [part for pair in node.value for part in pair]
        num_values += len(children)
        if num_values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise ConfigError(
                f"must have at most {_MAX_VALUES} values in {_MAX_DEPTH} levels; an alias counts "
                "as what it stands for"
            )
        waiting += [(child, depth + 1) for child in children]
