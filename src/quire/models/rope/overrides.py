"""`hf_overrides` of rope settings, in both spellings and with `rope_type` or `type`.

They change the object that the checkpoint has, so that a checkpoint with `rope_parameters` takes
`rope_scaling`, and the reverse. Called where config.json is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire.config.checkpoint.hf_overrides import HFOverrides, overridden
from quire.errors import ConfigError, quoted
from quire.models.rope.settings import SPELLINGS, is_by_layer
from quire.models.text_part import SECTIONS

_NAMES = ("rope_scaling", "rope_parameters")
"""The first one counts, if a checkpoint has both."""
_BASE = ("rope_theta",)
_SINGLE = (*_BASE, "partial_rotary_factor")
"""Keys of config.json that such an object may have instead."""
_KEPT = (*_SINGLE, "mrope_section", "mrope_interleaved", "llama_4_scaling_beta")
"""Keys that do not belong to one kind of scaling."""
_EXAMPLE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def overridden_rope(values: dict[str, Any], overrides: HFOverrides) -> dict[str, Any]:
    """config.json with `hf_overrides`. Raises ConfigError for rope settings that cannot be
    applied."""
    if not isinstance(overrides, Mapping):
        return _without_stale(values, overridden(values, overrides))
    return _applied(overridden(values, _without_rope(overrides)), overrides)


def _without_stale(before: Mapping[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """config.json that a function changed: a spelling that it set replaces the other one. The base
    stays, unless the function sets it."""
    is_set = [name for name in _NAMES if after.get(name) and after[name] != before.get(name)]
    stale = [name for name in _NAMES if name not in is_set] if is_set else []
    found = {key: value for key, value in after.items() if key not in stale}
    for name in is_set:
        for old, keys in ((before.get(name), _BASE), *((after.get(one), _KEPT) for one in stale)):
            if isinstance(old, Mapping) and isinstance(found[name], Mapping):
                kept = {key: old[key] for key in keys if key in old}
                found[name] = {**kept, **found[name]}
    for key in SECTIONS:
        if isinstance(before.get(key), Mapping) and isinstance(found.get(key), dict):
            found[key] = _without_stale(before[key], found[key])
    return found


def _without_rope(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_rope(value) if key in SECTIONS and isinstance(value, Mapping) else value
        for key, value in overrides.items()
        if key not in _NAMES
    }


def _applied(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """config.json, or its section about the text model, with the rope settings of the overrides."""
    config = dict(config)
    for key in SECTIONS:
        if isinstance(overrides.get(key), Mapping) and isinstance(config.get(key), dict):
            config[key] = _applied(config[key], overrides[key])
    own = {key: value for key, value in overrides.items() if key in (*_NAMES, *_SINGLE)}
    section = next((key for key in SECTIONS if _is_filled(config.get(key))), None)
    if own and section is not None:  # what is outside of it is not read
        config[section] = _applied({**config[section], **_singles(own)}, own)
        return config
    named = [name for name in _NAMES if name in own]
    if len(named) > 1:
        raise ConfigError("hf_overrides has rope_scaling and rope_parameters; give one of them")
    held = next((name for name in _NAMES if isinstance(config.get(name), Mapping)), None)
    old = config[held] if held else {}
    if named:
        new = _scaling(named[0], own[named[0]])
        new = _with_singles(new, _singles(own)) if is_by_layer(new) else {**_singles(own), **new}
        place = held or named[0]
        if is_by_layer(new):
            config = {key: value for key, value in config.items() if key not in _NAMES}
            place = "rope_parameters"
        config[place] = _changed(old, new)
    elif held:
        config[held] = _with_singles(old, _singles(own))
    return config


def _is_filled(section: Any) -> bool:
    return isinstance(section, dict) and bool(section)


def _singles(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {key: overrides[key] for key in _SINGLE if key in overrides}


def _with_singles(old: Mapping[str, Any], singles: dict[str, Any]) -> dict[str, Any]:
    """The object with values that config.json may have outside of it."""
    if not singles or not is_by_layer(old):
        return {**old, **{key: value for key, value in singles.items() if key in old}}
    [key, *_] = singles
    raise ConfigError(
        f"hf_overrides: {key} differs between the layers of this model; give "
        f'{{"rope_parameters": {{"full_attention": {{"{key}": {singles[key]}}}}}}}'
    )


def _scaling(name: str, value: Any) -> dict[str, Any]:
    """The settings with `rope_type`. Null means no scaling."""
    if value is None:
        return {"rope_type": "default"}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"hf_overrides: {name} must be an object such as {_EXAMPLE}, got {quoted(value)}"
        )
    found = dict(value)
    if "rope_type" not in found and "type" in found:
        found["rope_type"] = found.pop("type")
    return found


def _changed(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The object with the settings of the overrides. Another kind of scaling leaves nothing of the
    one before."""
    if is_by_layer(new):
        parts = {key: old.get(key) for key in new}
        found = {
            key: _changed(part if isinstance(part, Mapping) else {}, _scaling(key, new[key]))
            for key, part in parts.items()
        }
        return {**(old if is_by_layer(old) else {}), **found}
    if is_by_layer(old):
        kinds = ", ".join(old)
        raise ConfigError(
            f"hf_overrides: this model has rope settings for each kind of layer ({kinds}); give "
            f'{{"rope_parameters": {{"full_attention": {json.dumps(new, default=str)}}}}}'
        )
    kind, before = new.get("rope_type"), old.get("rope_type", old.get("type", "default"))
    if kind is None and before == "default" and not new.keys() <= {*_KEPT}:
        raise ConfigError(f"hf_overrides: rope_type is missing; give for example {_EXAMPLE}")
    if kind is None or SPELLINGS.get(str(kind)) == SPELLINGS.get(str(before)):
        return {**old, **new}
    return {**{key: old[key] for key in _KEPT if key in old}, **new}
