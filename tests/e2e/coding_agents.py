"""How each coding agent is started for one task, without a person and without other servers.

Each has to read `lamp.txt` with its own tool; aider, which has no tools, has to write it. The model
does what the task says (`tests/fakes/obedient_model.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = "amber-7"
FILE = "lamp.txt"
MODEL = "demo"


@dataclass(frozen=True, slots=True)
class Start:
    """A program's arguments, variables and files (by path in its folder)."""

    arguments: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def _task(name: str, **arguments: Any) -> str:
    return f"Do this: [[{json.dumps({'name': name, 'arguments': arguments})}]]"


def _codex(url: str, folder: Path) -> Start:
    provider = {
        "name": "quire", "base_url": f"{url}/v1", "wire_api": "responses", "env_key": "AGENT_KEY",
    }  # fmt: skip
    options = {f"model_providers.quire.{key}": value for key, value in provider.items()}
    words = [f"{key}={json.dumps(value)}" for key, value in options.items()]
    return Start(
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
         "--model", MODEL, "-c", "model_provider=quire", *(w for o in words for w in ("-c", o)),
         _task("exec_command", cmd=f"cat {FILE}")],
        {"CODEX_HOME": str(folder / "home"), "AGENT_KEY": "unused"},
    )  # fmt: skip


def _claude(url: str, folder: Path) -> Start:
    return Start(
        ["--print", "--model", MODEL, "--allowedTools", "Read", "--",
         _task("Read", file_path=str(folder / FILE))],
        {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "unused",
         "ANTHROPIC_SMALL_FAST_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
         "DISABLE_AUTOUPDATER": "1", "API_TIMEOUT_MS": "600000"},
    )  # fmt: skip


def _opencode(url: str, folder: Path) -> Start:
    limit = {"context": 100_000, "output": 2000}
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "quire",
        "options": {"baseURL": f"{url}/v1", "apiKey": "unused"},
        "models": {MODEL: {"name": MODEL, "limit": limit}},
    }  # fmt: skip
    settings = {"provider": {"quire": provider}, "share": "disabled", "autoupdate": False}
    return Start(
        ["run", "--model", f"quire/{MODEL}", _task("read", filePath=str(folder / FILE))],
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {"opencode.json": json.dumps(settings)},
    )


def _continue(url: str, folder: Path) -> Start:
    model = {"name": MODEL, "provider": "openai", "model": MODEL, "apiBase": f"{url}/v1",
             "apiKey": "unused", "capabilities": ["tool_use"], "roles": ["chat"]}  # fmt: skip
    settings = {"name": "local", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Start(
        ["--print", "--auto", "--config", "config.yaml",
         _task("Read", filepath=str(folder / FILE))],
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        {"config.yaml": json.dumps(settings)},
    )  # fmt: skip


def _aider(url: str, _: Path) -> Start:
    return Start(
        ["--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-show-model-warnings",
         "--no-check-update", "--analytics-disable", "--message",
         f"[[SAY {FILE}\n```\nnow {SECRET}\n```]]", FILE],
        {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "unused",
         "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )  # fmt: skip


AGENTS: dict[str, Callable[[str, Path], Start]] = {
    "aider": _aider, "claude": _claude, "cn": _continue, "codex": _codex, "opencode": _opencode,
}  # fmt: skip
"""By the name of the program: of the packages aider-chat (PyPI), @anthropic-ai/claude-code,
@continuedev/cli, @openai/codex and opencode-ai (npm)."""
