"""Search and answer: the document nearest to a question becomes part of the prompt.

The demo model gives the vectors here; a model for embeddings gives far better ones.
"""

import numpy as np

from quire import LLM, SamplingParams

documents = [
    "The lighthouse keeper lights the lamp at dusk.",
    "A quince is a fruit like a pear.",
    "Seventeen and twenty-five make forty-two.",
]
question = "Which fruit is like a pear?"

if __name__ == "__main__":
    embedder = LLM("demo", runner="pooling", convert="embed")
    vectors = [np.array(one.outputs.embedding) for one in embedder.embed([question, *documents])]
    scores = [float(vectors[0] @ vector) for vector in vectors[1:]]
    best = documents[int(np.argmax(scores))]
    print("nearest:", best)
    messages = [{"role": "user", "content": f"{best}\n{question}"}]
    output = LLM().chat(messages, SamplingParams(temperature=0, max_tokens=30))[0]
    print("answer:", output.outputs[0].text)
