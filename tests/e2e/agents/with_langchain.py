"""An agent of `langchain` with a model of `langchain-openai`."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report

model = ChatOpenAI(model=MODEL, base_url=BASE_URL, max_retries=0)
agent = create_agent(model, [tool(find_home), tool(get_weather)])
messages = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]})["messages"]
report(messages[-1].content)
