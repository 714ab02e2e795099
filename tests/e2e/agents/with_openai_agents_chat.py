"""The `openai-agents` package, by way of /v1/chat/completions."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report

client = AsyncOpenAI(base_url=BASE_URL, max_retries=0)
agent = Agent(
    name="helper", model=OpenAIChatCompletionsModel(MODEL, client),
    tools=[function_tool(find_home), function_tool(get_weather)],
)  # fmt: skip
report(Runner.run_sync(agent, QUESTION, max_turns=5).final_output)
