"""Clients that others wrote: the `openai` package for JavaScript, LiteLLM and LangChain.

Each runs in a process of its own, says what it got as JSON, and is compared with plain HTTP.
LiteLLM and LangChain pin older packages than we test with; QUIRE_CLIENTS_PYTHON may name an
interpreter that has them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import RunningServer

QUESTION = "What is a quire?"
OPTIONS = {"max_tokens": 16, "seed": 11, "temperature": 1.0}


def expected(server: RunningServer) -> dict[str, Any]:
    """The answer over plain HTTP."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], **OPTIONS}
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return {
        "text": reply["choices"][0]["message"]["content"],
        "completion_tokens": reply["usage"]["completion_tokens"],
        "prompt_tokens": reply["usage"]["prompt_tokens"],
    }


def run(command: list[str], server: RunningServer, **options: Any) -> dict[str, Any]:
    """What a client script printed last."""
    environment = {
        **os.environ, "BASE_URL": f"{server.url}/v1", "QUESTION": QUESTION,
        "OPENAI_API_KEY": "unused", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False,
        **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def check(found: dict[str, Any], server: RunningServer) -> None:
    wanted = expected(server)
    for way in ("whole", "stream"):
        assert found[way] == wanted, way
    assert found["error"] == "not found"


def python_with(*modules: str) -> str:
    """An interpreter that has these modules."""
    if all(importlib.util.find_spec(module) for module in modules):
        return sys.executable
    other = os.environ.get("QUIRE_CLIENTS_PYTHON")
    if other is None:
        pytest.skip(f"{', '.join(modules)} is not installed, and QUIRE_CLIENTS_PYTHON is not set")
    return other


LITELLM = """
import json, os, litellm
litellm.telemetry = False
options = dict(
    model="hosted_vllm/tiny", api_base=os.environ["BASE_URL"], api_key="x",
    messages=[{"role": "user", "content": os.environ["QUESTION"]}],
    max_tokens=16, seed=11, temperature=1.0,
)
whole = litellm.completion(**options)
chunks = list(litellm.completion(**options, stream=True, stream_options={"include_usage": True}))
usage = next(c.usage for c in reversed(chunks) if getattr(c, "usage", None))
text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
try:
    litellm.completion(**{**options, "model": "hosted_vllm/other"})
    error = ""
except litellm.NotFoundError:
    error = "not found"
def shape(text, usage):
    return {"text": text, "completion_tokens": usage.completion_tokens,
            "prompt_tokens": usage.prompt_tokens}
print(json.dumps({
    "whole": shape(whole.choices[0].message.content, whole.usage),
    "stream": shape(text, usage), "error": error,
}))
"""

LANGCHAIN = """
import json, os, openai
from langchain_openai import ChatOpenAI
def model(name):
    return ChatOpenAI(model=name, base_url=os.environ["BASE_URL"], max_retries=0,
                      max_completion_tokens=16, seed=11, temperature=1.0, stream_usage=True)
question = os.environ["QUESTION"]
whole = model("tiny").invoke(question)
total = None
for chunk in model("tiny").stream(question):
    total = chunk if total is None else total + chunk
try:
    model("other").invoke(question)
    error = ""
except openai.NotFoundError:
    error = "not found"
def shape(message):
    usage = message.usage_metadata
    return {"text": message.content, "completion_tokens": usage["output_tokens"],
            "prompt_tokens": usage["input_tokens"]}
print(json.dumps({"whole": shape(whole), "stream": shape(total), "error": error}))
"""

JAVASCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.env.BASE_URL, maxRetries: 0 });
const options = {
  model: "tiny", messages: [{ role: "user", content: process.env.QUESTION }],
  max_tokens: 16, seed: 11, temperature: 1.0,
};
const shape = (text, usage) => ({
  text, completion_tokens: usage.completion_tokens, prompt_tokens: usage.prompt_tokens,
});
const whole = await client.chat.completions.create(options);
let text = "", usage = null;
const stream = await client.chat.completions.create({
  ...options, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
let error = "";
try {
  await client.chat.completions.create({ ...options, model: "other" });
} catch (caught) {
  if (caught instanceof OpenAI.NotFoundError) error = "not found";
}
console.log(JSON.stringify({
  whole: shape(whole.choices[0].message.content, whole.usage), stream: shape(text, usage), error,
}));
"""


@pytest.mark.long
def test_litellm(server: RunningServer) -> None:
    check(run([python_with("litellm"), "-W", "ignore", "-c", LITELLM], server), server)


def test_langchain(server: RunningServer) -> None:
    python = python_with("langchain_openai")
    check(run([python, "-W", "ignore", "-c", LANGCHAIN], server), server)


def test_openai_for_javascript(server: RunningServer, pytestconfig: pytest.Config) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    assert pytestconfig.cache is not None
    directory = Path(pytestconfig.cache.mkdir("openai-javascript"))
    if not (directory / "node_modules" / "openai").is_dir():
        install = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(directory),
            "openai",
        ]
        done = subprocess.run(install, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install openai: {done.stderr[-200:]}")
    script = directory / "client.mjs"
    script.write_text(JAVASCRIPT)
    check(run(["node", str(script)], server, cwd=directory), server)
