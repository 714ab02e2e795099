"""A reply that is valid by a JSON schema, whatever the model would have written."""

import json

from quire.vllm.sampling_params import StructuredOutputsParams

from quire import LLM, SamplingParams

schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

if __name__ == "__main__":
    params = SamplingParams(
        temperature=0, max_tokens=60, structured_outputs=StructuredOutputsParams(json=schema)
    )
    text = LLM().generate("A person as JSON: ", params)[0].outputs[0].text
    print(json.loads(text))
