"""Applications of Ray Serve whose replicas are Quire's own servers.

The configuration has the keys of `ray.serve.llm`:

    from ray import serve
    from quire.ray.serve import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": "demo"},
        engine_kwargs={"num_threads": 2},
        deployment_config={"autoscaling_config": {"min_replicas": 1, "max_replicas": 4}},
        server_kwargs={"api_key": "..."},
    )
    serve.run(build_openai_app({"llm_configs": [config]}))

In a file of `serve deploy`, `import_path` is `quire.ray.serve:build_openai_app`, and `args` has
`llm_configs`. `build_pd_openai_app` makes an application with replicas that compute prompts
(`prefill_config`) and others that go on with them (`decode_config`).
"""

from quire.ray.serve.application import (
    build_llm_deployment,
    build_openai_app,
    build_pd_openai_app,
)
from quire.ray.serve.autoscaling import scale_on_queue_seconds
from quire.ray.serve.config import LLMConfig

__all__ = [
    "LLMConfig", "build_llm_deployment", "build_openai_app", "build_pd_openai_app",
    "scale_on_queue_seconds",
]  # fmt: skip
