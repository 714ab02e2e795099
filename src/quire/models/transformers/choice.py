"""Chooses between a family and transformers.

Called where config.json is read. The choice is stored as a key of the configuration, so that
planning, the worker and the names of stored K/V use the same one.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from quire.errors import UnsupportedModelError
from quire.models.base import HfConfig
from quire.models.quantised.in_config import quantisation_of
from quire.models.registry import ModelRegistry, architectures_of, resolve
from quire.models.text_part import has_other_parts, text_part
from quire.models.transformers.installation import leave_out_torchvision
from quire.models.transformers.mark import MARK

if TYPE_CHECKING:
    from quire.config.engine_args import ModelImpl

EXTRA = "pip install 'quire-engine[transformers]'"

_NEEDED = ("torch", "transformers")


def with_model_impl(hf_config: HfConfig, model_impl: ModelImpl) -> HfConfig:
    """Return config.json with the choice. `auto` uses transformers if no family has the
    architecture.

    Raises UnsupportedModelError if neither supports it, and CheckpointError for a damaged
    config.json.
    """
    plain = {key: value for key, value in hf_config.items() if key != MARK}
    if model_impl == "vllm":
        return plain
    marked = {**plain, MARK: "transformers"}
    if model_impl == "transformers":
        _check(marked)
        return marked
    if _is_known(plain):
        return plain
    try:
        _check(marked)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{_refusal(plain)}; {error}") from None
    return marked


def _is_known(hf_config: HfConfig) -> bool:
    text = text_part(hf_config)
    if any(map(ModelRegistry.row_name, architectures_of(text))):
        return True
    if not has_other_parts(hf_config):
        return False
    try:  # by the type of its text model
        resolve(ModelRegistry, text, True)
    except UnsupportedModelError:
        return False
    return True


def _refusal(hf_config: HfConfig) -> str:
    """Return the registry's error with the nearest family and without the list of all."""
    try:
        resolve(ModelRegistry, text_part(hf_config), has_other_parts(hf_config))
    except UnsupportedModelError as error:
        return str(error).partition("; supported are")[0]
    return "config.json: its architecture is not supported"


def _why_never(hf_config: HfConfig) -> str | None:
    """Return why transformers cannot help, according to config.json; None if unknown."""
    from quire.models.nearest import why_never  # for this message alone

    if quantisation_of(hf_config) is not None:
        return "they read no quantised weights here; load the unquantised checkpoint"
    return why_never(hf_config, architectures_of(hf_config)[0])


def _check(hf_config: HfConfig) -> None:
    """Raises UnsupportedModelError if transformers is missing or cannot run the model."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing and (never := _why_never(hf_config)) is not None:
        raise UnsupportedModelError(f"it does not run with transformers' modules either: {never}")
    if missing:
        raise UnsupportedModelError(
            f"it needs {' and '.join(missing)} to run, slowly, on transformers: {EXTRA}"
        )
    leave_out_torchvision()
    from quire.models.transformers.modules import find

    find(hf_config)
