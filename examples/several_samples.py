"""Several replies to one prompt, each with its log-probability; a seed makes them repeatable."""

from quire import LLM, SamplingParams

if __name__ == "__main__":
    params = SamplingParams(n=3, temperature=0.9, seed=7, max_tokens=12, logprobs=1)
    for one in LLM().generate("My favourite colour is", params)[0].outputs:
        print(f"{one.cumulative_logprob:8.3f}  {one.text!r}")
