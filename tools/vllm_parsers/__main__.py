"""`python -m tools.vllm_parsers record|compare`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from tools.vllm_parsers.compare import compare
from tools.vllm_parsers.reasons import reason
from tools.vllm_parsers.record import record


def show(cases: Path, chosen: str | None) -> None:
    """Prints a row for each family, and the differences of the chosen one."""
    found = compare(cases)
    for family, one in sorted(found.items()):
        why = Counter(reason(case, read) for case, read in one.differ)
        reasons = "; ".join(f"{n} {what}" for what, n in why.most_common())
        print(f"{family:26} {one.agree:5} agree {len(one.differ):5} differ  {reasons}")
    agree = sum(one.agree for one in found.values())
    differ = sum(len(one.differ) for one in found.values())
    print(f"{'all':26} {agree:5} agree {differ:5} differ")
    for case, read in found[chosen].differ if chosen else ():
        print("-" * 80, case["test"], case["method"], reason(case, read), sep="\n")
        print("text:", repr(case["text"]))
        for name in ("reasoning", "content", "calls"):
            print(
                f"{name}: vLLM {json.dumps(case[name])}\n{'':8}Quire {json.dumps(read.get(name))}"
            )


match sys.argv[1:]:
    case ["record", python, source, cases]:
        print(record(python, Path(source).resolve(), Path(cases)))
    case ["compare", cases, *family]:
        show(Path(cases), family[0] if family else None)
    case _:
        sys.exit("python -m tools.vllm_parsers record PYTHON SOURCE CASES | compare CASES [FAMILY]")
