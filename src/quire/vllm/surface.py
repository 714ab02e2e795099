"""The names of vLLM that Quire offers, with their modules in vLLM and in Quire.

Most names come from modules that the engine uses; helpers that only scripts need are in `own/`.
`missing.py` lists the names without a counterpart.
"""

from __future__ import annotations

from quire.vllm.parser_names import PARSER_SURFACE

VLLM_VERSION = "0.33.0"
"""The version of vLLM that has these names."""

SURFACE: dict[str, dict[str, str]] = {
    **PARSER_SURFACE,
    "vllm": {
        "quire": "AsyncEngineArgs AsyncLLMEngine ClassificationOutput ClassificationRequestOutput "
        "CompletionOutput EmbeddingOutput EmbeddingRequestOutput EngineArgs LLM LLMEngine "
        "ModelRegistry PoolingOutput PoolingParams PoolingRequestOutput RequestOutput "
        "SamplingParams ScoringOutput ScoringRequestOutput TextPrompt TokensPrompt",
        "quire.inputs": "PromptType",
        "quire.vllm.own.version": "__version__ __version_tuple__",
    },
    "vllm.benchmarks.datasets": {
        "quire.vllm.own.datasets": "DEFAULT_NUM_PROMPTS BenchmarkDataset CustomDataset "
        "PrefixRepetitionRandomDataset RandomDataset SampleRequest ShareGPTDataset "
        "add_dataset_parser get_samples"
    },
    "vllm.config": {
        "quire.config.kv_cache": "KVEventsConfig KVTransferConfig",
        "quire.config.pooling": "PoolerConfig",
        "quire.structured.params": "StructuredOutputsConfig",
        "quire.vllm.own.records": "KernelConfig ModelConfig ProfilerConfig",
    },
    "vllm.config.model": {"quire.vllm.own.records": "ModelConfig"},
    "vllm.config.kv_events": {"quire.config.kv_cache": "KVEventsConfig"},
    "vllm.config.kv_transfer": {"quire.config.kv_cache": "KVTransferConfig"},
    "vllm.config.structured_outputs": {"quire.structured.params": "StructuredOutputsConfig"},
    "vllm.beam_search": {"quire.beam_search": "BeamSearchOutput BeamSearchSequence"},
    "vllm.distributed": {
        "quire.vllm.own.utils": "cleanup_dist_env_and_memory "
        "destroy_distributed_environment destroy_model_parallel"
    },
    "vllm.distributed.kv_events": {
        "quire.protocol.kv_events": "AllBlocksCleared BlockRemoved BlockStored KVEventBatch"
    },
    "vllm.distributed.parallel_state": {
        "quire.vllm.own.utils": "cleanup_dist_env_and_memory "
        "destroy_distributed_environment destroy_model_parallel"
    },
    "vllm.engine.arg_utils": {"quire": "AsyncEngineArgs EngineArgs"},
    "vllm.engine.async_llm_engine": {"quire": "AsyncLLMEngine"},
    "vllm.engine.llm_engine": {"quire": "LLMEngine"},
    "vllm.engine.protocol": {
        "quire": "EngineClient=AsyncLLMEngine",
        "quire.inputs": "StreamingInput",
    },
    "vllm.entrypoints.cli.main": {"quire.vllm.own.commands": "main=command_line"},
    "vllm.entrypoints.generate.beam_search.utils": {
        "quire.beam_search": "BeamSearchOutput BeamSearchSequence"
    },
    "vllm.entrypoints.launchers.launcher": {"quire.vllm.own.http_app": "serve_http"},
    "vllm.entrypoints.llm": {"quire": "LLM"},
    "vllm.entrypoints.pooling.utils": {
        "quire.vllm.own.vectors": "MetadataItem build_metadata_items decode_pooling_output"
    },
    "vllm.entrypoints.serve.utils.api_utils": {"quire.vllm.own.http_app": "with_cancellation"},
    "vllm.entrypoints.openai.chat_completion.protocol": {
        "quire.vllm.parsers.requests": "BatchChatCompletionRequest ChatCompletionRequest",
        "quire.server.conversation.message": "ChatCompletionToolsParam=Tool FunctionDefinition",
    },
    "vllm.entrypoints.openai.completion.protocol": {
        "quire.vllm.parsers.requests": "CompletionRequest"
    },
    "vllm.entrypoints.openai.responses.protocol": {
        "quire.vllm.parsers.requests": "ResponsesRequest"
    },
    "vllm.envs": {"quire.vllm.own.envs": "*"},
    "vllm.exceptions": {
        "quire.errors": "VLLMError=QuireError VLLMClientError=RequestError "
        "VLLMValidationError=RequestError VLLMServerError=EngineError "
        "GenerationError=EngineGenerateError GracefulHTTPError=CapacityError "
        "QueueOverflowError=CapacityError MaxQueuedTokensError=CapacityError "
        "ProfilerAlreadyActiveError=ConfigError"
    },
    "vllm.inputs": {
        "quire.inputs": (
            "EmbedsPrompt ExplicitEncoderDecoderPrompt PromptType SingletonPrompt=PromptType "
            "TextPrompt TokensPrompt"
        )
    },
    "vllm.inputs.data": {"quire.inputs": "EmbedsPrompt PromptType TextPrompt TokensPrompt"},
    "vllm.logger": {"quire.vllm.own.logger": "init_logger suppress_logging"},
    "vllm.logprobs": {
        "quire.outputs": "FlatLogprobs Logprob LogprobsOnePosition PromptLogprobs SampleLogprobs"
    },
    "vllm.lora.request": {"quire.adapters": "LoRARequest"},
    "vllm.lora.resolver": {"quire.adapters.resolvers": "LoRAResolver LoRAResolverRegistry"},
    "vllm.plugins.lora_resolvers.filesystem_resolver": {
        "quire.adapters.resolvers": "FilesystemResolver"
    },
    "vllm.prompt_adapter.request": {"quire.adapters": "PromptAdapterRequest"},
    "vllm.model_executor.models": {"quire": "ModelRegistry"},
    "vllm.model_executor.models.registry": {"quire": "ModelRegistry"},
    "vllm.multimodal.image": {"quire.vllm.own.media": "convert_image_mode"},
    "vllm.multimodal.utils": {
        "quire.vllm.own.media": "encode_audio_base64 encode_audio_url encode_image_base64 "
        "encode_image_url encode_video_base64 encode_video_url fetch_image"
    },
    "vllm.outputs": {
        "quire": "ClassificationOutput ClassificationRequestOutput CompletionOutput "
        "EmbeddingOutput EmbeddingRequestOutput PoolingOutput PoolingRequestOutput RequestOutput "
        "ScoringOutput ScoringRequestOutput",
        "quire.outputs": "LateChunk LateChunkingMetadata",
    },
    "vllm.pooling_params": {
        "quire": "PoolingParams",
        "quire.protocol.pooling_params": "LateChunkingParams",
    },
    "vllm.platforms": {"quire.vllm.own.records": "current_platform"},
    "vllm.entrypoints.chat_utils": {
        "quire.vllm.parsers.records": "make_tool_call_id",
        "quire.vllm.own.tokenizers": "ChatCompletionMessageParam load_chat_template "
        "resolve_hf_chat_template=resolve_chat_template",
    },
    "vllm.renderers.hf": {"quire.vllm.own.tokenizers": "resolve_chat_template"},
    "vllm.renderers.chat_utils": {
        "quire.vllm.parsers.records": "make_tool_call_id",
        "quire.vllm.own.tokenizers": "load_chat_template",
    },
    "vllm.sampling_params": {
        "quire.beam_search": "BeamSearchParams",
        "quire.params": "RepetitionDetectionParams RequestOutputKind SamplingParams SamplingType",
        "quire.structured.params": "GuidedDecodingParams StructuredOutputsParams",
    },
    "vllm.sequence": {"quire.outputs": "Logprob PromptLogprobs SampleLogprobs"},
    "vllm.tokenizers": {
        "quire.frontend.hf_tokenizer": "TokenizerLike=HFTokenizer",
        "quire.vllm.own.tokenizers": "cached_get_tokenizer get_tokenizer",
    },
    "vllm.tokenizers.protocol": {"quire.frontend.hf_tokenizer": "TokenizerLike=HFTokenizer"},
    "vllm.tokenizers.registry": {"quire.vllm.own.tokenizers": "cached_get_tokenizer get_tokenizer"},
    "vllm.transformers_utils.tokenizer": {
        "quire.frontend.hf_tokenizer": "AnyTokenizer=HFTokenizer",
        "quire.vllm.own.tokenizers": "cached_get_tokenizer get_tokenizer",
    },
    "vllm.usage.usage_lib": {"quire.vllm.own.records": "UsageContext"},
    "vllm.utils": {
        "quire.vllm.own.argparse_utils": "FlexibleArgumentParser",
        "quire.vllm.own.utils": "merge_async_iterators random_uuid",
        "quire.units": "cdiv=ceil_div",
        "quire.vllm.own.network": "get_distributed_init_method=get_tcp_uri get_ip get_open_port",
    },
    "vllm.utils.argparse_utils": {"quire.vllm.own.argparse_utils": "FlexibleArgumentParser"},
    "vllm.utils.async_utils": {"quire.vllm.own.utils": "merge_async_iterators"},
    "vllm.utils.counter": {"quire.vllm.own.utils": "Counter"},
    "vllm.utils.math_utils": {"quire.units": "cdiv=ceil_div round_up"},
    "vllm.utils.mem_constants": {"quire.units": "GiB_bytes=GiB KiB_bytes=KiB MiB_bytes=MiB"},
    "vllm.utils.mistral": {"quire.vllm.own.tokenizers": "is_mistral_tokenizer"},
    "vllm.utils.network_utils": {
        "quire.vllm.own.network": "get_distributed_init_method=get_tcp_uri "
        "get_file_store_init_method get_ip get_loopback_ip get_open_port get_open_ports_list "
        "get_open_zmq_inproc_path get_open_zmq_ipc_path get_tcp_uri is_valid_ipv6_address "
        "join_host_port make_zmq_path split_host_port split_zmq_path"
    },
    "vllm.utils.print_utils": {"quire.vllm.own.vectors": "print_embeddings"},
    "vllm.utils.serial_utils": {
        "quire.vllm.own.vectors": "EMBED_DTYPES ENDIANNESS EmbedDType=EmbedDtype "
        "Endianness binary2tensor tensor2base64"
    },
    "vllm.utils.system_utils": {"quire.vllm.own.utils": "set_ulimit"},
    "vllm.utils.torch_utils": {"quire.vllm.own.utils": "async_tensor_h2d"},
    "vllm.v1.core.kv_cache_utils": {"quire.protocol.kv_events": "ExternalBlockHash=BlockHash"},
    "vllm.v1.engine.async_llm": {"quire": "AsyncEngineArgs AsyncLLM=AsyncLLMEngine"},
    "vllm.v1.engine.exceptions": {"quire.errors": "EngineDeadError EngineGenerateError"},
    "vllm.v1.engine.llm_engine": {"quire": "LLMEngine"},
    "vllm.v1.metrics.reader": {"quire.metrics.reader": "Counter Gauge Histogram Metric Vector"},
    "vllm.v1.metrics.loggers": {
        "quire.frontend.observers.user_stats": "AggregateStatLoggerBase AggregateStatLoggerFactory "
        "PerEngineStatLoggerFactory StatLoggerBase StatLoggerFactory"
    },
    "vllm.v1.metrics.stats": {
        "quire.frontend.observers.user_stats": "FinishedRequestStats IterationStats "
        "PrefixCacheStats PromptTokenStats SchedulerStats",
        "quire.outputs": "RequestStateStats",
    },
    "vllm.v1.sample.logits_processor": {
        "quire.logits_processors": "AdapterLogitsProcessor BatchUpdate LogitsProcessor "
        "MoveDirectionality RequestLogitsProcessor",
        "quire.logits_processors.loading": "LOGITSPROCS_GROUP=VLLM_GROUP",
    },
    "vllm.v1.sample.logits_processor.builtin": {
        "quire.logits_processors.adapter": "process_dict_updates"
    },
    "vllm.v1.sample.logits_processor.interface": {
        "quire.logits_processors": "AddedRequest BatchUpdate LogitsProcessor MoveDirectionality "
        "MovedRequest RemovedRequest"
    },
    "vllm.logits_process": {"quire.logits_processors": "LogitsProcessor=RequestLogitsProcessor"},
    "vllm.version": {
        "quire.vllm.own.version": "__version__ __version_tuple__ _prev_minor_version "
        "_prev_minor_version_was"
    },
}
"""Module of vLLM -> module of Quire -> names. `New=Old`: Quire's name is `Old`. `*`: every name of
the module of Quire."""

PROGRAMS = {
    "vllm.benchmarks.latency": "bench latency",
    "vllm.benchmarks.serve": "bench serve",
    "vllm.benchmarks.throughput": "bench throughput",
    "vllm.collect_env": "collect-env",
    "vllm.entrypoints.cli.main": "",
    "vllm.entrypoints.launchers.api_server.entry": "serve",
    "vllm.entrypoints.launchers.run_batch": "run-batch",
    "vllm.entrypoints.openai.api_server": "serve",
    "vllm.entrypoints.openai.run_batch": "run-batch",
}
"""Module of vLLM that `python -m` can run -> the equivalent first words of vLLM's command line."""


def surface_names(module: str) -> dict[str, tuple[str, str]]:
    """Return the names of a module of vLLM, each with its module in Quire and its name there."""
    found = {}
    for home, names in SURFACE.get(module, {}).items():
        for word in names.split():
            name, _, other = word.partition("=")
            found[name] = (home, other or name)
    return found
