"""The help of a command: its common options, every option, or those of a group or with a word.

Called by the parser. Knows argparse's groups and nothing of what options mean.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping
from copy import copy

ALL = "--help-all"
_HINT = (
    f"{ALL} shows every option, --help=GROUP the options of a group, and --help=WORD the options "
    "with that word in their names."
)


def short_help(parser: argparse.ArgumentParser, shortened: Mapping[str, Collection[str]]) -> str:
    """The command's own options, the common options of its large groups, and the groups.

    `shortened`: the common options of each large group, by its title.
    """
    formatter = _begun(parser)
    common: list[argparse.Action] = []
    groups = []
    for group in parser._action_groups:
        names = shortened.get(group.title or "")
        if names is None:
            _add_group(formatter, group)
        else:
            common += [_shortened(one) for one in group._group_actions if one.dest in names]
            groups.append(f"{group.title} ({len(group._group_actions)})")
    _add(formatter, "common options", common)
    formatter.add_text(f"Groups, with the number of their options: {', '.join(groups)}.")
    formatter.add_text(_HINT)
    return formatter.format_help()


def whole_help(parser: argparse.ArgumentParser) -> str:
    """Every option, by group."""
    formatter = _begun(parser)
    for group in parser._action_groups:
        _add_group(formatter, group)
    formatter.add_text(parser.epilog)
    return formatter.format_help()


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


def _shortened(action: argparse.Action) -> argparse.Action:
    """The option with the first sentence of its help, and its default."""
    text, mark, default = (action.help or "").partition(" (default: ")
    first = re.split(r"(?<=[.;])\s", text)[0].rstrip(";.") + "."
    short = copy(action)
    short.help = first + mark + default
    return short


def _begun(parser: argparse.ArgumentParser) -> argparse.HelpFormatter:
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    return formatter


def _add_group(formatter: argparse.HelpFormatter, group: argparse._ArgumentGroup) -> None:
    formatter.start_section(group.title)
    formatter.add_text((group.description or "").partition("\n\n")[0] or None)
    formatter.add_arguments(group._group_actions)
    formatter.end_section()


def _add(formatter: argparse.HelpFormatter, title: str, actions: list[argparse.Action]) -> None:
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
