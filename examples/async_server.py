"""Many requests to a server at once: they run together in one batch.

Start it first: quire serve
"""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


def ask(question: str) -> str:
    messages = [{"role": "user", "content": question}]
    body = json.dumps({"messages": messages, "max_tokens": 20, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


if __name__ == "__main__":
    questions = [f"What is {a} + {a}?" for a in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for question, answer in zip(questions, pool.map(ask, questions), strict=True):
            print(question, answer)
