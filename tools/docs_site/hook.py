"""MkDocs hook: the Markdown files of the repository's root become pages of the site.

GitHub shows these files in the root, where links lead into `docs/`; in the site they are pages like
any other. So both kinds of links are rewritten.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_IN_CODE = "quire.vllm.__all__"
"""The names that a program computes, which the reader of sources reports as unknown."""
logging.getLogger("mkdocs.plugins.griffe").addFilter(
    lambda record: _IN_CODE not in record.getMessage()
)
_LINK = re.compile(r"(\]\()((?:\.\./)*)(docs/)?([^):#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the root."""
    for source, page in PAGES.items():
        text = _LINK.sub(_from_root, (ROOT / source).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links to files of the root to their pages."""
    depth = page.file.src_uri.count("/")
    for source, target in PAGES.items():
        markdown = markdown.replace(
            f"]({'../' * (depth + 1)}{source}", f"]({'../' * depth}{target}"
        )
    return markdown


def _from_root(link: re.Match[str]) -> str:
    begin, _, _, target = link.groups()
    return f"{begin}{PAGES.get(target, target)}"
