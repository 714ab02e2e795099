"""An application of Ray Serve with replicas of the demo model, in this process or in a child, and
what its tests send to it.

    python tests/e2e/serve_application.py 3      # three replicas, until its input ends
    python tests/e2e/serve_application.py 1 2    # and two others for the prompts

With QUIRE_TEST_ADAPTER, the folder of an adapter, it has a second model with this adapter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai

KEY, PORT = "a key of this test", 28123
URL = f"http://127.0.0.1:{PORT}"
BODY: dict[str, Any] = {
    "model": "demo", "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    "max_tokens": 24, "temperature": 0,
}  # fmt: skip
LONG = {**BODY, "max_tokens": 4000, "ignore_eos": True}
SLOW_S = 5.0
"""Seconds for what takes less than two on a machine that has nothing else to do."""


def start(num_replicas: int, num_prefill: int = 0) -> Any:
    """Ray Serve, with the application, in the cluster whose address is QUIRE_TEST_CLUSTER or one of
    its own. `num_prefill`: replicas that compute the prompts of others,
    which share a KV store with them in the folder that QUIRE_TEST_STORE names."""
    os.environ.update(
        RAY_worker_niceness="0",  # and on a busy machine, the proxy is not given up at once
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="120",
        RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="60",
    )
    from ray import init, serve

    from quire.ray.serve import LLMConfig, build_openai_app, build_pd_openai_app

    cluster = os.environ.get("QUIRE_TEST_CLUSTER")
    if cluster is not None:
        init(address=cluster, _node_ip_address=cluster.partition(":")[0], log_to_driver=False)
    else:
        init(
            address="local", _node_ip_address="127.0.0.1", num_cpus=8, include_dashboard=False,
            object_store_memory=80 << 20, log_to_driver=False,
        )  # fmt: skip
    engine: dict[str, Any] = {"num_threads": 1, "max_model_len": 4096, "max_num_seqs": 8}
    if num_prefill:
        engine["kv_store_path"] = os.environ["QUIRE_TEST_STORE"]

    adapter = os.environ.get("QUIRE_TEST_ADAPTER")
    server: dict[str, Any] = {"api_key": KEY, "body_timeout": 30.0 if adapter is None else 5.0}

    def config(num_replicas: int) -> LLMConfig:
        return LLMConfig(
            model_loading_config={"model_id": "demo"},
            engine_kwargs=engine,
            deployment_config={"num_replicas": num_replicas},
            server_kwargs=server,
        )

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    if num_prefill:
        app = build_pd_openai_app(
            {"prefill_config": config(num_prefill), "decode_config": config(num_replicas)}
        )
    else:
        ingress = (
            {}
            if cluster is None
            else {"ray_actor_options": {"num_cpus": 0, "resources": {"head": 0.1}}}
        )
        configs = [config(num_replicas)]
        if adapter is not None:
            configs.append(
                LLMConfig(
                    model_loading_config={"model_id": "second", "model_source": "demo"},
                    engine_kwargs={**engine, "enable_lora": True},
                    server_kwargs={**server, "lora_modules": (f"red={adapter}",)},
                )
            )
        app = build_openai_app({"llm_configs": configs, "ingress_deployment_config": ingress})
    serve.run(app)
    post()
    return serve


def post(key: str = KEY, body: dict[str, Any] = BODY) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{URL}/v1/chat/completions", json=body, headers=headers, timeout=120)


def streamed(
    body: dict[str, Any], begun: threading.Semaphore | None = None, max_retries: int = 0
) -> tuple[str, str, float]:
    """The text of a reply, its error, and when it ended. `begun` is released when it begins."""
    text, error = "", ""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=max_retries, timeout=120)
    extra = {"ignore_eos": body.get("ignore_eos", False)}
    given = {name: value for name, value in body.items() if name != "ignore_eos"}
    try:
        for event in client.chat.completions.create(stream=True, extra_body=extra, **given):
            new = (event.choices[0].delta.content or "") if event.choices else ""
            if new and not text and begun is not None:
                begun.release()
            text += new
    except (openai.APIError, httpx.HTTPError) as found:
        error = str(found) or type(found).__name__
    return text, error, time.monotonic()


def processes(name: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"^ray::{name}"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def replicas() -> list[int]:
    """Processes with an engine."""
    return processes("ServeReplica:default:Quire:demo")


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    start(*map(int, sys.argv[1:]))
    print("ready", flush=True)
    sys.stdin.read()
