"""How the scheduler saves K/V to the KV store and loads it from there."""
