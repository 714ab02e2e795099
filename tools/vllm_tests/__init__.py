"""Runs vLLM's own tests against Quire, and writes which pass, and why others do not.

    pip download --no-deps --no-binary vllm --no-clean vllm==0.33.0   (the source distribution)
    python -m tools.vllm_tests run [--model DIRECTORY] SOURCE RESULTS [FILE ...]
    python -m tools.vllm_tests examples SOURCE RESULTS
    python -m tools.vllm_tests page SOURCE RESULTS

(In the repository, with src in PYTHONPATH.) `run` runs all files that could pass, or those named,
several in a process, and keeps what came of each in the folder RESULTS. `--model` names another
model than the bundled one, for a folder of results of its own. A folder has results of one state
of the code. Tests need pytest-asyncio, pytest-timeout, psutil, fastapi, rapidfuzz, openai-harmony,
partial-json-parser and pybase64, and an idle machine: tests of servers have a time limit. Adapters
are of random numbers, and pictures of one colour. `examples` does the same with the examples of
vLLM's documentation, of which some are clients of a server at port 8000.
`page` sorts the results into docs/vllm_tests.md. For a file without a result it takes that in the
folder RESULTS/earlier, else what the page says, and marks the row.

The tests run as they are, except that models named by their hub id are a local one, that
`tests/conftest.py`, `tests/utils.py` and `tests/models/utils.py`, which need a GPU and parts of
vLLM, are replaced by those in `stand_ins/`, and that `import vllm` is Quire's `quire.vllm`. A name
that Quire does not have is a placeholder, which fails the tests that use it
(`stand_ins/placeholders.py`); a file of which no name is there is not run. The K/V store is off.
"""
