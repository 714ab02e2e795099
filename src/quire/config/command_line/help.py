"""`--help=WORD`: one group of options, the options with that word in their names, or all.

Called by the parser. Knows argparse's groups and nothing of what options mean.
"""

from __future__ import annotations

import argparse

HINT = (
    "--help=GROUP shows one group, --help=WORD the options with that word, and --help=all also "
    "those of vLLM that do nothing here."
)


def help_for(parser: argparse.ArgumentParser, word: str) -> str:
    """The help for a group's title or a part of an option's name, in any case."""
    wanted = word.lower().replace("_", "-")
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        if (group.title or "").lower() == wanted:
            _add(formatter, group.title or "", group._group_actions)
            return formatter.format_help()
    matching = [
        action
        for group in parser._action_groups
        for action in group._group_actions
        if any(wanted in name.lower() for name in action.option_strings)
    ]
    if matching:
        _add(formatter, f"options with {word!r}", matching)
        return formatter.format_help()
    titles = ", ".join(group.title or "" for group in parser._action_groups if group._group_actions)
    return f"No group and no option is called {word!r}. The groups are: {titles}.\n"


def _add(formatter: argparse.HelpFormatter, title: str, actions: list[argparse.Action]) -> None:
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
