"""A tool that the model may call: the program runs it, and gives the result back.

Start a server first: quire serve
"""

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def post(path: str, body: dict) -> dict:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


if __name__ == "__main__":
    messages = [{"role": "user", "content": "Add 17 and 25."}]
    choice = {"type": "function", "function": {"name": "add"}}
    asked = {"messages": messages, "tools": [TOOL], "tool_choice": choice, "temperature": 0}
    message = post("/v1/chat/completions", {**asked, "max_tokens": 60})["choices"][0]["message"]
    call = message["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    print(call["name"], arguments, "->", arguments["a"] + arguments["b"])
