"""`pi` with the prompt and the tools that it has: it reads two files, one after the other.

QUIRE_PI is its command (npm: @mariozechner/pi-coding-agent).
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from task import BASE_URL, CALLS, MODEL, report

FILES = {"lamp": "soft lamp", "garden": "green and quiet"}
TASK = "First use read with lamp, and then use read with garden."

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    model = {"id": MODEL, "contextWindow": 4096, "maxTokens": 512}
    provider = {
        "baseUrl": BASE_URL, "api": "openai-completions", "apiKey": "unused", "models": [model],
    }  # fmt: skip
    (folder / "models.json").write_text(json.dumps({"providers": {"local": provider}}))
    (folder / "work").mkdir()
    for file, text in FILES.items():
        (folder / "work" / file).write_text(text)
    done = subprocess.run(
        [os.environ["QUIRE_PI"], "--print", "--mode", "json", "--no-session",
         "--provider", "local", "--model", MODEL, TASK],
        env={**os.environ, "PI_CODING_AGENT_DIR": name, "PI_OFFLINE": "1"},
        cwd=folder / "work", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip

results = []
for event in map(json.loads, done.stdout.splitlines()):
    if event["type"] == "tool_execution_start":
        CALLS.append([event["toolName"], *event["args"].values()])
    elif event["type"] == "tool_execution_end":
        results.append(event["result"]["content"][0]["text"])
report(results)
