"""`python -m tools.from_vllm`: writes the tables of the page."""

from tools.from_vllm.page import PAGE, updated

PAGE.write_text(updated(PAGE.read_text()))
