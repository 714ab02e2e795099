"""From a request body to the engine: prompts, sampling parameters, generation."""
