"""vLLM's engine arguments that are not implemented, with the values that are accepted.

A script written for vLLM often sets defaults explicitly: values without effect are accepted. Any
other value is refused with the reason, never ignored. Read by `names.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why an argument is refused; `neutral`: its values without effect. None is always one."""

    reason: str
    neutral: tuple[object, ...]


_GROUPS: dict[str, dict[str, tuple[object, ...]]] = {
    "this version computes in one process, on the CPU": {
        "tensor_parallel_size": (1,),
        "pipeline_parallel_size": (1,),
        "data_parallel_size": (1,),
        "prefill_context_parallel_size": (1,),
        "decode_context_parallel_size": (1,),
        "data_parallel_rank": (0,),
        "data_parallel_start_rank": (0,),
        "data_parallel_size_local": (1,),
        "data_parallel_address": (),
        "data_parallel_rpc_port": (),
        "data_parallel_backend": ("mp",),
        "data_parallel_hybrid_lb": (False,),
        "data_parallel_external_lb": (False,),
        "enable_expert_parallel": (False,),
        "distributed_executor_backend": ("uni",),
        "max_parallel_loading_workers": (),
        "nnodes": (1,),
        "node_rank": (0,),
        "master_addr": ("127.0.0.1",),
        "master_port": (29501,),
        "distributed_timeout_seconds": (),
        "worker_cls": ("auto",),
        "worker_extension_cls": ("",),
        "disable_custom_all_reduce": (False, True),
        "ray_workers_use_nsight": (False,),
        "enable_eplb": (False,),
        "enable_elastic_ep": (False,),
        "enable_dbo": (False,),
        "numa_bind": (False,),
        "device_ids": (),
    },
    "a trace tells a request's time in the queue, in prefill and in decode, and nothing finer": {
        "collect_detailed_traces": (),
    },
    "only generation of text is supported": {
        "runner": ("auto", "generate"),
        "convert": ("auto", "none"),
        "task": ("auto", "generate"),
        "pooler_config": (),
        "enable_prompt_embeds": (False,),
        "io_processor_plugin": (),
    },
    "only text goes in": {
        "limit_mm_per_prompt": ({},),
        "mm_processor_kwargs": ({},),
        "media_io_kwargs": ({},),
        "mm_processor_cache_gb": (4, 4.0, 0, 0.0),
        "mm_encoder_tp_mode": ("weights",),
        "enable_mm_embeds": (False,),
        "interleave_mm_strings": (False,),
        "skip_mm_profiling": (False, True),
        "language_model_only": (False, True),
        "allowed_local_media_path": ("",),
        "allowed_media_domains": ([],),
        "disable_chunked_mm_input": (False, True),
    },
    "LoRA adapters do not work yet": {
        "enable_lora": (False,),
        "max_loras": (1,),
        "max_lora_rank": (16,),
        "max_cpu_loras": (),
        "lora_dtype": ("auto",),
        "lora_target_modules": (),
        "fully_sharded_loras": (False,),
        "default_mm_loras": (),
    },
    "speculative decoding does not work yet": {
        "speculative_config": ({},),
        "spec_method": (),
        "spec_model": (),
        "spec_tokens": (),
    },
    "structured outputs do not work yet": {
        "structured_outputs_config": ({},),
        "reasoning_parser": ("",),
        "reasoning_parser_plugin": ("",),
        "reasoning_config": ({},),
        "logits_processors": ([],),
    },
    "the KV cache has no further tiers yet": {
        "kv_transfer_config": (),
        "kv_events_config": (),
        "ec_transfer_config": (),
        "kv_offloading_size": (0, 0.0),
        "kv_offloading_backend": ("native",),
        "swap_space": (0, 0.0, 4, 4.0),
    },
    "weights stay in memory, in one piece": {
        "cpu_offload_gb": (0, 0.0),
        "offload_backend": ("auto",),
        "offload_group_size": (0,),
        "offload_num_in_group": (1,),
        "offload_prefetch_step": (1,),
        "offload_params": ([],),
        "enable_sleep_mode": (False,),
        "weight_transfer_config": (),
    },
    "there is one kind of loader, which finds the format by itself": {
        "config_format": ("auto", "hf"),
        "hf_config_path": (),
        "code_revision": (),
        "model_loader_extra_config": ({},),
        "ignore_patterns": (["original/**/*"], "original/**/*"),
        "safetensors_load_strategy": ("lazy",),
        "pt_load_map_location": ("cpu",),
        "use_tqdm_on_load": (True, False),
        "model_impl": ("auto", "vllm"),
        "model_weights": ("",),
        "model_class_overrides": ({},),
    },
    "there is one tokenizer implementation": {
        "tokenizer_mode": ("auto", "hf", "fast"),
        "renderer_num_workers": (1,),
    },
    "nothing here is compiled or captured at run time": {
        "compilation_config": ({}, 0),
        "optimization_level": (0, 1, 2, 3),
        "performance_mode": ("balanced",),
        "cudagraph_capture_sizes": (),
        "max_cudagraph_capture_size": (),
        "attention_config": ({},),
        "attention_backend": (),
        "kernel_config": ({},),
        "additional_config": ({},),
        "profiler_config": ({},),
        "quantization_config": ({},),
        "disable_cascade_attn": (False, True),
        "use_fp64_gumbel": (False,),
    },
    "the scheduler has no such choice": {
        "scheduler_cls": (),
        "async_scheduling": (False,),
        "max_num_scheduled_tokens": (),
        "max_num_active_seqs": (),
        "long_prefill_token_threshold_adaptive": (False,),
        "scheduler_reserve_full_isl": (True,),
        "prefill_schedule_interval": (1,),
        "watermark": (0, 0.0),
        "disable_sliding_window": (False,),
        "disable_hybrid_kv_cache_manager": (False, True),
        "prefix_caching_hash_algo": ("sha256",),
        "prefix_cache_retention_interval": (0,),
        "kv_sharing_fast_prefill": (False,),
        "kv_cache_dtype_skip_layers": ([],),
    },
    "it is not implemented": {
        "logprobs_mode": ("raw_logprobs",),
        "enable_trace_replay": (False,),
        "return_sampling_mask": (False,),
        "enable_return_routed_experts": (False,),
        "aggregate_engine_logging": (False,),
        "show_hidden_metrics_for_version": (),
        "kv_cache_metrics": (False,),
        "enable_mfu_metrics": (False,),
        "enable_logging_iteration_details": (False,),
        "cudagraph_metrics": (False,),
        "tokens_only": (False,),
        "watermark_config": (),
    },
}

UNSUPPORTED: dict[str, Unsupported] = {
    name: Unsupported(reason, neutral)
    for reason, names in _GROUPS.items()
    for name, neutral in names.items()
}
