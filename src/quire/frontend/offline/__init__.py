"""`LLMEngine` and the parts of `LLM`: one engine, without a server, for one thread or several.

`SharedLoop` steps the engine for all waiting threads, `TurnLock` lets threads use it in turns, and
`Calls` submits the requests of one call and waits for their outputs.
"""
