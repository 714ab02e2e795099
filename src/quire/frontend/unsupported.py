"""Methods and arguments of vLLM that Quire refuses: ConfigError says what is missing."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.errors import ConfigError

_TRANSFER = "connection to a trainer"
_NEW_WEIGHTS = (
    "load new weights from a folder, collective_rpc('reload_weights', kwargs={'weights_path': "
    "folder}), or from memory, apply_model(lambda model: model.load_weights(names_and_tensors))"
)
_SCALING = "more than one engine"


class _Refused:
    """Placeholder for a method, which the class replaces by a function: `help` and editors show a
    method of that name and the missing feature."""

    def __init__(self, feature: str, instead: str = "") -> None:
        self._feature = feature
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        message = f"{name} is not supported: Quire has no {self._feature} yet"
        if self._instead:
            message += f"; {self._instead}"

        def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
            del self, args, kwargs
            raise ConfigError(message)

        refuse.__name__, refuse.__qualname__ = name, f"{owner.__qualname__}.{name}"
        refuse.__doc__ = f"Raises ConfigError: {message}."
        setattr(owner, name, refuse)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """For type checkers only: the function set by `__set_name__` is called instead."""
        raise NotImplementedError


class UnsupportedEngineMethods:
    """Methods that `LLMEngine` and `AsyncLLM` lack."""

    get_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)
    set_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)
    compute_weight_checksums = _Refused(_TRANSFER, _NEW_WEIGHTS)


class UnsupportedTransfers:
    """Methods for training that `LLM` and `AsyncLLM` lack."""

    init_weight_transfer_engine = _Refused(_TRANSFER, _NEW_WEIGHTS)
    shutdown_weight_transfer_engine = _Refused(_TRANSFER, _NEW_WEIGHTS)
    start_weight_update = _Refused(_TRANSFER, _NEW_WEIGHTS)
    start_draft_weight_update = _Refused(_TRANSFER, _NEW_WEIGHTS)
    update_weights = _Refused(_TRANSFER, _NEW_WEIGHTS)
    finish_weight_update = _Refused(_TRANSFER, _NEW_WEIGHTS)
    update_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)
    get_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)


class UnsupportedAsyncMethods(UnsupportedEngineMethods, UnsupportedTransfers):
    """Methods that `AsyncLLM` lacks."""

    scale_elastic_ep = _Refused(_SCALING)
    handle_fault = _Refused(_SCALING)
    get_status = _Refused(_SCALING)
    checkpoint_prepare = _Refused("checkpoints of a running engine")
    checkpoint_restore = _Refused("checkpoints of a running engine")
    notify_kv_transfer_request_rejected = _Refused("transfer of K and V between engines")


def refuse_arguments(**given: object) -> None:
    """Raises ConfigError if an argument of vLLM's methods that Quire does not support is not
    None."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is not supported yet; leave it out")
