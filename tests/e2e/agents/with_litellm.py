"""`litellm` with the loop over calls that its documentation shows."""

import json

import litellm
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report

litellm.telemetry = False
FUNCTIONS = {"find_home": find_home, "get_weather": get_weather}


def described(name: str, parameter: str, text: str) -> dict:
    parameters = {
        "type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter],
    }  # fmt: skip
    function = {"name": name, "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


tools = [
    described("find_home", "person", "Get the city where a person lives"),
    described("get_weather", "city", "Get the current weather in a city"),
]
messages: list = [{"role": "user", "content": QUESTION}]
for _ in range(5):
    message = litellm.completion(
        model=f"hosted_vllm/{MODEL}", api_base=BASE_URL, api_key="x", messages=messages,
        tools=tools, tool_choice="auto",
    ).choices[0].message  # fmt: skip
    if not message.tool_calls:
        break
    messages.append(message)
    for call in message.tool_calls:
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
report(message.content)
