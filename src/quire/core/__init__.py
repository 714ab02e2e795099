"""`EngineCore`, the loop that steps it, and the hosts of that loop: a thread or a process.

`capability.Capability` is the contract of what requests use besides the model: adapters, pictures,
grammars and the KV store. `EngineCoreClient` is the front end's view of a loop in any host.
"""
