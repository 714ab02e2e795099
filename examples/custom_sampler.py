"""Code of your own on the logits: this request may only choose tokens with even numbers."""

import numpy as np

from quire import LLM, SamplingParams
from quire.logits_processors import AdapterLogitsProcessor


class OnlyEven(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        if not (params.extra_args or {}).get("only_even"):
            return None

        def process(_output_token_ids, logits):
            logits[1::2] = -np.inf
            return logits

        return process


if __name__ == "__main__":
    llm = LLM(logits_processors=[OnlyEven])
    params = SamplingParams(temperature=0, max_tokens=10, extra_args={"only_even": True})
    print(llm.generate("The sky is", params)[0].outputs[0].token_ids)
