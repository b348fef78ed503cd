"""`dovetail completion`: scripts with which shells complete command lines, made from the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from dovetail.cli.command import Answer, Argument, Command


def command(commands: Sequence[Command]) -> Command:
    """Return the command that prints the scripts for these commands and itself."""

    def run(args: argparse.Namespace) -> Answer:
        return Answer(SHELLS[args.shell]((*commands, made)))

    made = Command(
        "completion",
        "Print what completes command lines in a shell: source <(dovetail completion bash).",
        (Argument("shell", "the shell", {"choices": list(SHELLS), "metavar": "bash|zsh|fish"}),),
        run,
    )
    return made


def flags(of: Command) -> list[str]:
    """The options of a command that help lists."""
    return [a.name for a in of.arguments if a.name[0] == "-" and not a.hidden] + ["--help"]


def choices(of: Command) -> dict[str, list[str]]:
    """The words that options of a command take, where they are few and known."""
    return {a.name: list(map(str, a.how["choices"])) for a in of.arguments if a.how.get("choices") and not a.hidden}


def bash(commands: Sequence[Command]) -> str:
    """Return the script for bash."""
    lines = ["_dovetail() {", "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}"]
    lines += ["  if [ $COMP_CWORD -eq 1 ]; then", f"    COMPREPLY=($(compgen -W '{_names(commands)}' -- \"$word\"))"]
    lines += ["    return", "  fi", "  case ${COMP_WORDS[1]}:$before in"]
    for one in commands:
        for flag, words in choices(one).items():
            where = flag if flag[0] == "-" else one.name
            lines.append(
                f"    {one.name}:{where}) COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$word\")); return;;"
            )
    lines += ["  esac", "  case ${COMP_WORDS[1]}:$word in"]
    for one in commands:
        lines.append(f"    {one.name}:-*) COMPREPLY=($(compgen -W '{' '.join(flags(one))}' -- \"$word\"));;")
    lines += ['    *) COMPREPLY=($(compgen -f -- "$word"));;', "  esac", "}"]
    return "\n".join([*lines, "complete -o filenames -F _dovetail dovetail"])


def zsh(commands: Sequence[Command]) -> str:
    """Return the script for zsh."""
    lines = ["#compdef dovetail", "_dovetail() {", "  if (( CURRENT == 2 )); then", "    local -a commands=("]
    lines += [f"      '{one.name}:{_plain(one.doc)}'" for one in commands]
    lines += ["    )", "    _describe command commands", "    return", "  fi", "  case $words[2] in"]
    for one in commands:
        known = choices(one)
        specs: list[str] = []
        for argument in one.arguments:
            if argument.name[0] == "-" and not argument.hidden:
                several = "*" if argument.how.get("action") == "append" else ""
                takes = "" if argument.how.get("action") == "store_true" else f":{_plain(argument.key)}:"
                takes += f"({' '.join(known[argument.name])})" if argument.name in known else "_files" if takes else ""
                specs.append(f"'{several}{argument.name}[{_plain(argument.doc)}]{takes}'")
        words = [w for name, ws in known.items() if name[0] != "-" for w in ws]
        rest = f"'1: :({' '.join(words)})' '*: :_files'" if words else "'*: :_files'"
        lines.append(f"    {one.name}) shift words; (( CURRENT-- )); _arguments {' '.join(specs)} {rest};;")
    return "\n".join([*lines, "  esac", "}", "compdef _dovetail dovetail"])


def fish(commands: Sequence[Command]) -> str:
    """Return the script for fish."""
    lines: list[str] = []
    for one in commands:
        lines.append(f"complete -c dovetail -n __fish_use_subcommand -a {one.name} -d '{_plain(one.doc)}'")
        seen = f"-n '__fish_seen_subcommand_from {one.name}'"
        known = choices(one)
        for argument in one.arguments:
            words = f" -xa '{' '.join(known[argument.name])}'" if argument.name in known else ""
            if argument.name[0] == "-" and not argument.hidden:
                takes = "" if argument.how.get("action") == "store_true" or words else " -r"
                lines.append(
                    f"complete -c dovetail {seen} -l {argument.name[2:]}{takes}{words} -d '{_plain(argument.doc)}'"
                )
            elif words:
                lines.append(f"complete -c dovetail {seen}{words}")
    return "\n".join(lines)


SHELLS: Mapping[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""The script of each shell."""


def _names(commands: Sequence[Command]) -> str:
    return " ".join(one.name for one in commands)


def _plain(text: str) -> str:
    """The first words of a text, without what a shell would read as its own."""
    first = text.partition(";")[0].partition(". ")[0]
    return "".join(c for c in first if c not in "'[]:\\`$\"")[:80].strip()


__all__ = ["SHELLS", "bash", "choices", "command", "fish", "flags", "zsh"]
