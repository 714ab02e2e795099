"""Two models in one server: each is loaded when it is asked for.

Start it first: quire serve demo ./another-model
"""

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


def call(path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers)) as reply:
        return json.load(reply)


if __name__ == "__main__":
    for card in call("/v1/models")["data"]:
        name = card["id"]
        body = {"model": name, "prompt": "The sky is", "max_tokens": 5, "temperature": 0}
        text = call("/v1/completions", body)["choices"][0]["text"]
        states = {
            one["id"]: one.get("status", {}).get("value") for one in call("/v1/models")["data"]
        }
        print(f"{name}: {text!r}; states now: {states}")
