"""A text while it is generated: the engine of a program with an event loop."""

import asyncio

from quire import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def main() -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(disable_log_stats=True))
    params = SamplingParams(temperature=0, max_tokens=40)
    shown = 0
    async for output in engine.generate("Once upon a time", params, "story-1"):
        text = output.outputs[0].text
        print(text[shown:], end="", flush=True)
        shown = len(text)
    print()
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
