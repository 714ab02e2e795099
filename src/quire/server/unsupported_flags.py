"""vLLM's options of `serve` that `ServerArgs` does not have; see also `config/unsupported/`.

A neutral value is accepted, any other is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.config.unsupported import unsupported
from quire.errors import ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)

_ONE_PROCESS = "one process answers HTTP; start several servers and a proxy in front of them"

UNSUPPORTED_FLAGS = unsupported(
    {
        "no template from a request is ever trusted": {"trust_request_chat_template": (False,)},
        "the server runs no tools; callers do": {"tool_server": (None,)},
        _ONE_PROCESS: {"api_server_count": (None, 1)},
        "the server speaks HTTP alone": {"grpc": (False,), "grpc_port": (None,)},
    },
    {
        "settings of a request never make images larger than the engine's do": {
            "trust_request_mm_kwargs": False,
        },
        "/inference/v1/generate and /render are always there": {"enable_scale_out": False},
        _ONE_PROCESS: {
            "data_parallel_supervisor_port": 9256,
            "dp_supervisor_probe_interval_s": 5.0,
            "dp_supervisor_probe_timeout_s": 5.0,
            "dp_supervisor_probe_failure_threshold": 3,
        },
        "outputs are logged whole, at their end": {"enable_log_deltas": True},
        "every usage has them": {"enable_prompt_tokens_details": False},
        "every reply has one": {"enable_request_id_headers": False},
        "/load always has the load": {"enable_server_load_tracking": False},
        "/docs takes nothing from the network": {"enable_offline_docs": False},
        "the headers' size is bounded: max_header_bytes": {"h11_max_header_count": 256},
        "nothing here is scored": {"enable_flash_late_interaction": True},
        "this server lacks Cohere routes": {
            "cohere_is_reasoning_model": True, "cohere_format": "cmd4",
        },
    },
)  # fmt: skip


def check_flags(given: Mapping[str, object]) -> None:
    """Raises ConfigError for an option whose value would have an effect."""
    for name, entry in UNSUPPORTED_FLAGS.items():
        if name not in given:
            continue
        value, flag = given[name], "--" + name.replace("_", "-")
        if not entry.accepts(value):
            raise ConfigError(f"{flag} {quoted(value)} is not supported: {entry.reason}")
        if not entry.is_refused and value not in (None, entry.default):
            logger.info("%s has no effect here: %s", flag, entry.reason)
