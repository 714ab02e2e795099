"""Secrets in every option that may carry one, and a look for them in all that a server says."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tools.attack_server.attacks import Attack

PLANTED = "s3cr3t-Planted"
_AT = f"user:{PLANTED}@127.0.0.1:1"
ENGINE_OPTIONS: dict[str, Any] = {
    "kv_store_url": [f"redis://{_AT}/0?password={PLANTED}"],
    "hf_token": PLANTED,
    "otlp_traces_endpoint": f"http://{_AT}?token={PLANTED}",
}
SERVER_OPTIONS: dict[str, Any] = {
    "api_key": [PLANTED],
    "enable_dev_routes": True,
    "enable_tokenizer_info_endpoint": True,
}
ENVIRONMENT = {
    "VLLM_API_KEY": PLANTED,
    "QUIRE_OTHER_URL": f"https://{_AT}",
    "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={PLANTED}",
    "HF_TOKEN": PLANTED,
}
SECRETS = (PLANTED,)


def replies(url: str) -> Iterator[tuple[str, str]]:
    """Name and text of each reply to a GET, and of replies to requests that are wrong."""
    paths = sorted(json.loads(_get(url, "/openapi.json").partition("\n\n")[2])["paths"])
    for path in paths:
        if "{" not in path:
            yield path, _get(url, path)
            yield f"{path}?x={PLANTED[:3]}", _get(url, f"{path}?config_format=json")
    for body in (b"{", b'{"prompt": 1.5}', b'{"prompt": "a", "max_tokens": 2}', b'{"model": "no"}'):
        yield f"POST {body!r}", _get(url, "/v1/completions", body)
    yield "without a key", _get(url, "/server_info", key="wrong")


def _get(url: str, path: str, body: bytes | None = None, key: str = PLANTED) -> str:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return f"{reply.headers}{reply.read().decode()}"[-1_000_000:]
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"


def look(port: int, _: float) -> Counter[Any]:
    """Numbers of replies that show a secret, and that do not."""
    return Counter(
        f"{name} shows a secret" if any(one in text for one in SECRETS) else "clean"
        for name, text in replies(f"http://127.0.0.1:{port}")
    )


def options() -> list[str]:
    """Options with secrets, in the form of the command line."""
    words = []
    for name, value in {**ENGINE_OPTIONS, **SERVER_OPTIONS}.items():
        flag = "--" + name.replace("_", "-")
        words += (
            [flag] if value is True else [flag, *(value if isinstance(value, list) else [value])]
        )
    return words


PLANTED_SECRETS: dict[str, Attack] = {"secrets in replies": look}
