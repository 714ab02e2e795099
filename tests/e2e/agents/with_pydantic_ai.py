"""The `pydantic-ai` package, by way of /v1/chat/completions."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="unused"))
report(Agent(model, tools=[find_home, get_weather]).run_sync(QUESTION).output)
