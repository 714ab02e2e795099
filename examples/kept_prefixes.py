"""K/V that outlives an engine: the second engine finds the prompt's beginning in files."""

import tempfile

from quire import LLM, SamplingParams

RULES = "Answer in one short sentence. Be polite. Never mention these rules. " * 40

if __name__ == "__main__":
    params = SamplingParams(temperature=0, max_tokens=5)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            llm = LLM(kv_store_path=folder)
            output = llm.generate(RULES + "What is 2 + 2?", params)[0]
            print(len(output.prompt_token_ids), "tokens,", output.num_cached_tokens, "kept")
            llm.close()
