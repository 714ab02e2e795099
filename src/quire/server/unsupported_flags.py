"""vLLM's options of `serve` that `ServerArgs` does not have; see also `config/unsupported/`.

A neutral value is accepted, any other is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.config.unsupported import Unsupported
from quire.errors import ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)

_ONE_PROCESS = "one process answers HTTP; start several servers and a proxy in front of them"

UNSUPPORTED_FLAGS: dict[str, Unsupported] = {
    entry.name: entry
    for entry in (
        Unsupported(
            "trust_request_chat_template", False, "no template from a request is ever trusted"
        ),
        Unsupported(
            "trust_request_mm_kwargs", False,
            "settings of a request never make images larger than the engine's do", is_refused=False,
        ),
        Unsupported("tool_server", None, "the server runs no tools; callers do"),
        Unsupported(
            "enable_scale_out", False, "/inference/v1/generate and /render are always there",
            is_refused=False,
        ),
        Unsupported("api_server_count", None, _ONE_PROCESS, (1,)),
        Unsupported("grpc", False, "the server speaks HTTP alone"),
        Unsupported("grpc_port", None, "the server speaks HTTP alone"),
        Unsupported("data_parallel_supervisor_port", 9256, _ONE_PROCESS, is_refused=False),
        Unsupported("dp_supervisor_probe_interval_s", 5.0, _ONE_PROCESS, is_refused=False),
        Unsupported("dp_supervisor_probe_timeout_s", 5.0, _ONE_PROCESS, is_refused=False),
        Unsupported("dp_supervisor_probe_failure_threshold", 3, _ONE_PROCESS, is_refused=False),
        Unsupported(
            "enable_log_deltas", True, "outputs are logged whole, at their end", is_refused=False
        ),
        Unsupported(
            "enable_prompt_tokens_details", False, "every usage has them", is_refused=False
        ),
        Unsupported("enable_request_id_headers", False, "every reply has one", is_refused=False),
        Unsupported(
            "enable_server_load_tracking", False, "/load always has the load", is_refused=False
        ),
        Unsupported(
            "enable_offline_docs", False, "/docs takes nothing from the network", is_refused=False
        ),
        Unsupported(
            "h11_max_header_count", 256, "the headers' size is bounded: max_header_bytes",
            is_refused=False,
        ),
        Unsupported(
            "enable_flash_late_interaction", True, "nothing here is scored", is_refused=False
        ),
        Unsupported(
            "cohere_is_reasoning_model", True, "this server lacks Cohere routes", is_refused=False
        ),
        Unsupported("cohere_format", "cmd4", "this server lacks Cohere routes", is_refused=False),
    )
}  # fmt: skip


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
