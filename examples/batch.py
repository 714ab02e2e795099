"""Many prompts in one call: they run together, and the results come in the order of the prompts."""

from quire import LLM, SamplingParams

questions = [f"What is {a} + {a + 3}?" for a in range(8)]

if __name__ == "__main__":
    llm = LLM()
    conversations = [[{"role": "user", "content": question}] for question in questions]
    params = SamplingParams(temperature=0, max_tokens=20)
    for question, output in zip(questions, llm.chat(conversations, params), strict=True):
        print(question, output.outputs[0].text)
