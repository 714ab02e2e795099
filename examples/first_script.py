"""Four prompts, one call: the first script. With vLLM, only the import line differs."""

from quire import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]

if __name__ == "__main__":
    llm = LLM()  # no argument: the bundled demo model
    for output in llm.generate(prompts, SamplingParams(temperature=0.8, top_p=0.95)):
        print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
