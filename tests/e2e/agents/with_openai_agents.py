"""The `openai-agents` package, by way of /v1/responses."""

from agents import Agent, Runner, function_tool, set_default_openai_client
from openai import AsyncOpenAI
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report

set_default_openai_client(AsyncOpenAI(base_url=BASE_URL, max_retries=0), use_for_tracing=False)
agent = Agent(
    name="helper", model=MODEL, tools=[function_tool(find_home), function_tool(get_weather)]
)
report(Runner.run_sync(agent, QUESTION, max_turns=5).final_output)
