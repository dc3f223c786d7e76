"""What a shell completes: its script, and the words that may follow those of a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bnuq.errors import RequestError

SCRIPTS = {  # each asks `bnuq --complete SHELL LINE`; where that has no answer, the shell completes names of files
    "bash": r"""_bnuq() {
    local IFS=$'\n'
    COMPREPLY=($(bnuq --complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]] && compopt -o nospace
}
complete -o default -F _bnuq bnuq""",
    "zsh": r"""#compdef bnuq
_bnuq() {
    local -a found
    found=("${(@f)$(bnuq --complete zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    [[ -n ${found[1]} ]] && compadd -a found || _files
}
compdef _bnuq bnuq""",
    "fish": r"complete -c bnuq -a '(bnuq --complete fish (commandline -cp) 2>/dev/null)'",
}
_MODELS = (".toml", ".pt", ".pth", ".th", ".ckpt", ".safetensors", ".bin", ".pt2")
_SETS = ("train", "test", "ood", "validation")


def script(shell: str) -> str:
    """The script of a shell, to be evaluated by it; RequestError for another one."""
    if shell not in SCRIPTS:
        raise RequestError(f"--completion is {shell[:40]!r}; expected one of {', '.join(SCRIPTS)}.")
    return SCRIPTS[shell]


def completed(group: Any, shell: str, line: str) -> list[str]:
    """The words that the last one of `line`, a command line up to the cursor, may become. Of them bash wants what
    follows the last = or :, at which it breaks words."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation
        words = line.split()
    current = words.pop() if words and not line[-1:].isspace() else ""
    found = [word for word in _words(group, words[1:], current) if word.startswith(current) and word != current]
    broken = len(re.match(".*[=:]|", current)[0]) if shell == "bash" else 0  # type: ignore[index]
    return [word[broken:] for word in found]


def _words(group: Any, before: list[str], current: str) -> Iterable[str]:
    command = next((word for word in before if word in group.commands), None)
    if command is None:
        return [*group.commands, "--help", "--version", "--completion"]
    params = group.commands[command].params
    options = {name: each for each in params for name in (*each.opts, *each.secondary_opts) if name.startswith("-")}
    name, equals, value = current.partition("=")
    if equals and name in options:
        return [f"{name}={each}" for each in _values(options[name], value)]
    if before[-1] in options and not options[before[-1]].is_flag:
        return _values(options[before[-1]], current)
    if current.startswith("-"):
        return options
    return _paths(current) if any(each.metavar == "MODEL" for each in params) else ()


def _values(option: Any, current: str) -> list[str]:
    """What an option takes, behind what of a list or behind a name is already there."""
    start = re.match(r"(.*,)?(\w+=)?", current)[0] if option.name == "ood" else current[: current.rfind(",") + 1]  # type: ignore[index]
    return [start + value for value in _names(option)]


def _names(option: Any) -> Iterable[str]:
    if option.name in _SETS:
        from bnuq.data.known import known_sets

        return [f"{known.name}:{split}" for known in known_sets() for split in known.splits]
    if option.name in ("method", "methods"):
        from bnuq.methods import METHODS

        return [method.name for method in METHODS]
    if option.metavar in ("SCORE", "METRIC"):
        from bnuq.metrics.registry import METRICS, SCORES

        return SCORES if option.metavar == "SCORE" else METRICS
    return [each for each in (option.metavar or "").split("|") if re.fullmatch(r"[a-z][a-z0-9_+.-]*", each)]


def _paths(current: str) -> list[str]:
    """Run files, checkpoints and folders whose paths begin so."""
    start = current[: current.rfind("/") + 1]
    try:
        files = sorted(Path(start or ".").iterdir())
    except OSError:
        return []
    folders = [f"{start}{file.name}/" for file in files if file.is_dir() and not file.name.startswith(".")]
    return [*(f"{start}{file.name}" for file in files if file.suffix in _MODELS and file.is_file()), *folders]
