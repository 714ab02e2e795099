"""An application of Ray Serve for `routers.py`, until its input ends. Needs Ray.

    python ray_serve_child.py PORT REPLICAS OPTIONS [CLASS]

OPTIONS are those of each engine, as JSON. CLASS is a request router of Ray Serve, which replaces
Quire's ingress: each replica then answers HTTP itself.
"""

from __future__ import annotations

import json
import os
import sys

from quire.ray.serve import LLMConfig, build_openai_app


def main() -> None:
    """Starts the application, prints a line, and ends it when the input does."""
    port, replicas, options, *router = sys.argv[1:]
    os.environ.update(RAY_worker_niceness="0")
    import ray
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    ray.init(
        address="local", _node_ip_address="127.0.0.1", num_cpus=2 * int(replicas),
        include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False,
    )  # fmt: skip
    deployment = {"num_replicas": int(replicas)}
    if router:
        deployment["request_router_config"] = RequestRouterConfig(request_router_class=router[0])
    config = LLMConfig(
        model_loading_config={"model_id": "demo"},
        engine_kwargs=json.loads(options),
        deployment_config=deployment,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(build_openai_app({"llm_configs": [config], "insecure": True}))
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
