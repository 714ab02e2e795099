"""`python -m tools.vllm_tests run|examples|page SOURCE RESULTS`."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.vllm_tests.examples import run_examples
from tools.vllm_tests.page import PAGE, page
from tools.vllm_tests.running import run

match sys.argv[1:]:
    case ["run", "--model", model, source, results, *files]:
        run(Path(source).resolve(), Path(results).resolve(), files, Path(model))
    case ["run", source, results, *files]:
        run(Path(source).resolve(), Path(results).resolve(), files)
    case ["examples", source, results]:
        run_examples(Path(source).resolve(), Path(results).resolve())
    case ["page", source, results]:
        PAGE.write_text(page(Path(source), Path(results), PAGE.read_text()))
    case _:
        sys.exit("python -m tools.vllm_tests run|examples|page SOURCE RESULTS [FILE ...]")
