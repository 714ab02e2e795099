"""`pi`, a coding agent for terminals, by way of each of its three APIs.

QUIRE_PI is its command (npm: @mariozechner/pi-coding-agent). The tools are those of an extension.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from task import BASE_URL, CALLS, MODEL, QUESTION, report

SERVERS = {
    "openai-completions": BASE_URL,
    "openai-responses": BASE_URL,
    "anthropic-messages": BASE_URL.removesuffix("/v1"),
}
EXTENSION = """
import { appendFileSync } from "node:fs";

function tool(name, description, key, resultOf) {
  return {
    name, label: name, description,
    parameters: { type: "object", properties: { [key]: { type: "string" } }, required: [key] },
    async execute(_, given) {
      appendFileSync(process.env.CALLS, JSON.stringify([name, given[key]]) + "\\n");
      return { content: [{ type: "text", text: resultOf(given[key]) }], details: {} };
    },
  };
}

export default function (pi) {
  const homes = JSON.parse(process.env.HOMES);
  pi.registerTool(tool("find_home", "Get the city where a person lives", "person",
    (person) => homes[person]));
  pi.registerTool(tool("get_weather", "Get the current weather in a city", "city",
    () => process.env.WEATHER));
}
"""


def ask(api: str, folder: Path) -> tuple[str, list[list[str]]]:
    """The answer, and the calls before it."""
    model = {"id": MODEL, "contextWindow": 4096, "maxTokens": 512}
    provider = {"baseUrl": SERVERS[api], "api": api, "apiKey": "unused", "models": [model]}
    (folder / "models.json").write_text(json.dumps({"providers": {"local": provider}}))
    (folder / "tools.js").write_text(EXTENSION)
    log = folder / f"{api}.calls"
    done = subprocess.run(
        [os.environ["QUIRE_PI"], "--print", "--no-session", "--provider", "local",
         "--model", MODEL, "--extension", str(folder / "tools.js"), "--no-builtin-tools",
         "--system-prompt", "You are a helpful assistant.", QUESTION],
        env={**os.environ, "PI_CODING_AGENT_DIR": str(folder), "CALLS": str(log),
             "PI_OFFLINE": "1"},
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    calls = log.read_text().splitlines() if log.exists() else []
    return done.stdout, [json.loads(line) for line in calls]


with tempfile.TemporaryDirectory() as name:
    replies = [ask(api, Path(name)) for api in SERVERS]
calls = replies[0][1]
assert all(other == calls for _, other in replies), replies
CALLS.extend(calls)
report([answer for answer, _ in replies])
