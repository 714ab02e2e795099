"""The tool runner of the `anthropic` package, by way of /v1/messages."""

from anthropic import Anthropic, beta_tool
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report

client = Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key="unused", max_retries=0)
runner = client.beta.messages.tool_runner(
    model=MODEL, max_tokens=256, tools=[beta_tool(find_home), beta_tool(get_weather)],
    messages=[{"role": "user", "content": QUESTION}],
)  # fmt: skip
final = runner.until_done()
report("".join(block.text for block in final.content if block.type == "text"))
