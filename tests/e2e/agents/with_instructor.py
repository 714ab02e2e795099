"""`instructor`: each step is a pydantic model that the reply has to be."""

import instructor
from openai import OpenAI
from pydantic import BaseModel
from task import BASE_URL, MODEL, QUESTION, find_home, get_weather, report


class Home(BaseModel):
    """Get the city where a person lives"""

    person: str


class Weather(BaseModel):
    """Get the current weather in a city"""

    city: str


client = instructor.from_openai(OpenAI(base_url=BASE_URL, api_key="unused", max_retries=0))


def extracted(kind: type, text: str) -> BaseModel:
    return client.chat.completions.create(
        model=MODEL, response_model=kind, messages=[{"role": "user", "content": text}]
    )


city = find_home(extracted(Home, QUESTION).person)
report(get_weather(extracted(Weather, f"What is the weather in {city}?").city))
