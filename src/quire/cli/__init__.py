"""The command line, `quire`. `app` selects the command; each command is a module."""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, which is to be imported in `main`
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point, `app.main`, which takes a moment to import: Ctrl+C may come before the
    command begins."""
    try:
        from quire.cli.app import main as run

        return run(argv)
    except KeyboardInterrupt:
        return 130
