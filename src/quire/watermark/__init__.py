"""Watermarks: a statistical signal in the choice of tokens, which a holder of the key can detect.

`config` says what a watermark is, `requests` who gets one, `philox` gives its pseudorandom numbers,
`detection` finds it in token ids without a model. Tokens are chosen with it in
`quire.worker.processors.watermark`.
"""
