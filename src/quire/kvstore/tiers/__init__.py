"""The places where chunks of K/V are kept: memory, files, Redis and Valkey, object stores.

`base.Tier` is the contract, which the suite in `tests/conformance/kv_tiers` holds. `registry` opens
the tier that a URL names, also one of an installed package.
"""
