"""Arguments of vLLM that have no effect here, by reason, with vLLM's defaults.

Every value is accepted; a value that is not the default is logged.
"""

from __future__ import annotations

WITHOUT_EFFECT: dict[str, dict[str, object]] = {
    "nothing is compiled or captured at run time": {
        "compilation_config": {},
        "optimization_level": 2,
        "cudagraph_capture_sizes": None,
        "max_cudagraph_capture_size": None,
        "disable_cascade_attn": None,
        "kernel_config": {},
        "ir_op_priority": {},
        "linear_backend": "auto",
        "enable_flashinfer_autotune": None,
        "jit_monitor_mode": "warn",
        "jit_monitor_verbose": False,
    },
    "a layer is computed by one implementation": {
        "monokernel": False,
    },
    "attention is computed by one implementation": {
        "attention_backend": None,
        "attention_config": {},
    },
    "steps follow each other in one way": {
        "async_scheduling": None,
    },
    "every request may have trace_decode_token_ids": {
        "enable_trace_replay": False,
    },
    "ranks and engines communicate in one way": {
        "disable_custom_all_reduce": False,
        "disable_nccl_for_dp_synchronization": None,
        "dp_sync_interval": 16,
        "dbo_decode_token_threshold": 32,
        "dbo_prefill_token_threshold": 512,
        "distributed_timeout_seconds": None,
        "cpu_distributed_timeout_seconds": None,
        "data_parallel_address": None,
        "data_parallel_rpc_port": None,
        "max_parallel_loading_workers": None,
        "aggregate_engine_logging": False,
    },
    "experts are computed in one way": {
        "moe_backend": "auto",
        "all2all_backend": "allgather_reducescatter",
        "expert_placement_strategy": "linear",
    },
    "no metrics are hidden": {
        "show_hidden_metrics_for_version": None,
    },
    "no model here has an indexer of attention": {
        "sparse_indexer_topk_backend": "auto",
    },
    "states of recurrent layers are never computed again from a buffer": {
        "replayssm_buffer_len": 16,
    },
    "snapshots of recurrent states follow enable_prefix_caching": {
        "mamba_cache_mode": None,
    },
    "sleep and wake_up always work": {
        "enable_sleep_mode": False,
        "sleep_mode_backend": "cumem",
    },
    "weight files are mapped into memory, and read as they are packed": {
        "safetensors_load_strategy": None,
        "safetensors_prefetch_num_threads": 8,
        "safetensors_prefetch_block_size": 16 * 1024 * 1024,
        "pt_load_map_location": "cpu",
        "use_tqdm_on_load": True,
    },
    "images are encoded and kept in one way": {
        "language_model_only": False,
        "mm_processor_cache_gb": 4,
        "mm_processor_cache_type": "lru",
        "mm_hasher_algorithm": "blake3",
        "mm_shm_cache_max_object_size_mb": 128,
        "mm_encoder_tp_mode": "weights",
        "mm_encoder_attn_backend": None,
        "mm_encoder_attn_dtype": None,
        "mm_encoder_fp8_scale_path": None,
        "mm_encoder_fp8_scale_save_margin": 1.5,
        "mm_tensor_ipc": "direct_rpc",
        "mm_processor_device": "auto",
        "mm_ipc_gpu_memory_gb": 0,
        "mm_device_do_normalize": True,
        "skip_mm_profiling": False,
        "disable_chunked_mm_input": False,
        "video_pruning_method": "evs",
    },
    "adapters are computed in one way": {
        "fully_sharded_loras": False,
        "specialize_active_lora": False,
        "max_lora_cls_labels": None,
    },
    "the tensors of an adapter say how it has experts": {
        "enable_mixed_moe_lora_format": False,
        "enable_moe_shared_loras": False,
    },
    "the system allocates memory; this allocator does not exist here": {
        "enable_cumem_allocator": False,
        "enable_nccl_comm_suspend": False,
        "sleep_mode_offload_cudagraph": False,
    },
    "blocks are found by their SHA-256, with any value": {
        "prefix_caching_hash_algo": "sha256",
    },
    "no format is deprecated": {
        "allow_deprecated_quantization": False,
    },
    "text is prepared on as many threads as it takes": {
        "renderer_num_workers": 1,
    },
    "metrics of the KV cache are refused": {
        "kv_cache_metrics_sample": 0.01,
    },
}
