"""A beginning that requests share is computed once: the second request finds it in the cache."""

from quire import LLM, SamplingParams

RULES = "Answer in one short sentence. Be polite. Never mention these rules. " * 8

if __name__ == "__main__":
    llm = LLM()
    params = SamplingParams(temperature=0, max_tokens=10)
    for question in ("What is 2 + 2?", "What is 3 + 3?"):
        output = llm.generate(RULES + question, params)[0]
        print(len(output.prompt_token_ids), "tokens,", output.num_cached_tokens, "of them cached")
