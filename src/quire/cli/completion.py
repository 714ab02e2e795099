"""Words that complete a command line, for the shells' completion (`quire completion bash`).

The shell calls `quire __complete WORD...` with the words so far; the last one is being typed. Only
the command's options are built; no engine is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.cli.command import Command, Group
from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.command_line.parser import Parser

SHELLS = ("bash", "zsh", "fish")
_TAKE_MODELS = frozenset({
    "serve", "run", "explain", "show", "rm", "pull", "bench", "embed", "quantize", "merge", "alias",
})  # fmt: skip


def completions(words: Sequence[str], commands: Sequence[Command]) -> list[str]:
    """Possible completions of the last word."""
    *before, last = words or [""]
    if not before:
        return _matching(last, [command.name for command in commands])
    command = next((one for one in commands if one.name == before[0]), None)
    if command is None:
        return []
    found = command.load()
    if isinstance(found, Group):
        return completions(words[1:], found.commands)
    parser = Parser("quire")
    found.configure(parser)
    actions = {
        word: one for one in parser._actions for word in one.option_strings if word[:2] == "--"
    }
    previous = actions.get(before[-1])
    if last.startswith("-"):
        return _matching(last, [*actions, "--help", "--help-all"])
    if previous is not None and previous.choices:
        return _matching(last, map(str, previous.choices))
    return _matching(last, _models()) if command.name in _TAKE_MODELS else []


def script(shell: str) -> str:
    """The shell's code that asks for completions."""
    return {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]


def _models() -> list[str]:
    from quire import env
    from quire.config.model_lookup.aliases import read_aliases
    from quire.config.model_lookup.library import models_of
    from quire.errors import ConfigError

    try:
        return [DEMO_MODEL, *read_aliases(), *(one.name for one in models_of(env.hub_cache_dir()))]
    except ConfigError:
        return [DEMO_MODEL]


def _matching(begin: str, words: Any) -> list[str]:
    return sorted(word for word in words if word.startswith(begin))


_BASH = """\
_quire() {
    local IFS=$'\\n'
    local line=("${COMP_WORDS[@]:1:COMP_CWORD}")
    local current="${COMP_WORDS[COMP_CWORD]}"
    if [[ "$COMP_WORDBREAKS" == *:* ]]; then  # bash splits org/name:file at the colon
        line=($(printf '%s' "${COMP_LINE:0:COMP_POINT}" | tr -s ' ' '\\n' | tail -n +2))
        [[ "${COMP_LINE:0:COMP_POINT}" == *" " ]] && line+=("")
        current="${line[${#line[@]}-1]}"
    fi
    COMPREPLY=($(quire __complete "${line[@]}" 2>/dev/null))
    if [[ "$current" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%:*}:"}")
    fi
}
complete -o default -F _quire quire
"""
_ZSH = """\
#compdef quire
_quire() {
    local -a found
    found=("${(@f)$(quire __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[*]}" ]]; then
        compadd -a found
    else
        _files
    fi
}
compdef _quire quire
"""
_FISH = """\
function __quire_complete
    set -l words (commandline -opc) (commandline -ct)
    quire __complete $words[2..-1] 2>/dev/null
end
complete -c quire -a '(__quire_complete)'
"""
