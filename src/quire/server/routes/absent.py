"""vLLM's routes that do not exist here, with the reason that their 404 gives."""

from __future__ import annotations

_REASONS: dict[str, tuple[str, ...]] = {
    "there are no pooling models": (
        "/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score",
        "/generative_scoring", "/rerank", "/v1/rerank", "/v2/rerank",
    ),
    "only text goes in": (
        "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime",
    ),
    "what works is /v1/chat/completions, /v1/responses, /v1/messages and /v1/completions": (
        "/v1/messages/render", "/cohere/v2/chat", "/cohere/v2/chat/render",
        "/v1/systemone",
    ),
    "LoRA adapters do not work yet": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    "/inference/v1/generate gives the text of a reply too, with output_mode `text`": (
        "/v1/completions/derender", "/v1/chat/completions/derender",
    ),
    "this version computes in one process, on the CPU": (
        "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply",
        "/fault_tolerance/status",
    ),
    "new weights come from files: /collective_rpc with the method reload_weights": (
        "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update",
        "/start_draft_weight_update", "/update_weights", "/finish_weight_update",
        "/update_weight_version", "/weight_checker", "/weight_info",
    ),
    "the documentation is at /docs": ("/redoc",),
}  # fmt: skip

ABSENT_ROUTES: dict[str, str] = {
    path: reason for reason, paths in _REASONS.items() for path in paths
}
"""By path; `{name}` stands for one segment."""
