"""From a request of any API to the engine and back: prompts, parameters, outputs."""
