"""The `llm` command of the terminal, with tools from a text of Python functions."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from task import BASE_URL, CALLS, MODEL, QUESTION, report

MODELS = f"""
- model_id: demo
  model_name: {MODEL}
  api_base: {BASE_URL}
  supports_tools: true
"""
# `llm` makes a tool of each function of the text that has no underscore before its name.
FUNCTIONS = f"""
import json, os, sys
sys.path.append({str(Path(__file__).parent)!r})
import task

def _logged(result):
    with open(os.environ["CALLS"], "a") as log:
        print(json.dumps(task.CALLS[-1]), file=log)
    return result

def find_home(person: str) -> str:
    "Get the city where a person lives"
    return _logged(task.find_home(person))

def get_weather(city: str) -> str:
    "Get the current weather in a city"
    return _logged(task.get_weather(city))
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(MODELS)
    log = Path(folder, "calls")
    done = subprocess.run(
        [sys.executable, "-m", "llm", "prompt", "-m", "demo", "--key", "unused",
         "--functions", FUNCTIONS, QUESTION],
        env={**os.environ, "LLM_USER_PATH": folder, "CALLS": str(log)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    CALLS.extend(map(json.loads, log.read_text().splitlines()))
report(done.stdout)
