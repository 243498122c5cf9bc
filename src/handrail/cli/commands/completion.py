"""``handrail completion``: shell completions, made from the parser itself.

What is shell code is in ``cli/completions/``; the names and options are filled in here.
"""

from __future__ import annotations

import argparse
import os


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = 'Print completions for a shell; use: eval "$(handrail completion bash)".'
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Print the completions."""
    print(render(args.shell))
    return 0


def render(shell: str) -> str:
    """The completions for one shell."""
    commands = _describe()
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


class _Command:
    """A command's name, its help, its options with theirs, and what its first argument may be."""

    def __init__(self, name: str, help_: str, parser: argparse.ArgumentParser) -> None:
        self.name = name
        self.help = _quoted(help_)
        self.options = _options(parser)
        self.operands: list[str] = []
        for action in parser._actions:
            if action.choices is not None and not action.option_strings:
                self.operands += action.choices
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    self.options |= _options(below)


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {
        option: _quoted((action.help or "").replace("%(default)s", str(action.default)))
        for action in parser._actions
        for option in action.option_strings
        if action.help != argparse.SUPPRESS
    }


def _quoted(text: str) -> str:
    """For a shell's single quotes, on one line, without the colon that zsh splits at."""
    return " ".join(text.split()).replace("'", "").replace(":", ",")


def _describe() -> list[_Command]:
    from handrail.cli.app import COMMANDS, build_parser

    parser = build_parser(COMMANDS, filled=COMMANDS)
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return [_Command(n, COMMANDS[n], p) for n, p in commands.choices.items()]


def _script(shell: str, names: str, cases: list[str]) -> str:
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "completions")
    with open(os.path.join(folder, f"{shell}.sh"), encoding="utf-8") as file:
        text = file.read().rstrip("\n")
    return text.replace("@NAMES@", names).replace("@CASES@", "\n".join(cases))


def _bash(commands: list[_Command]) -> str:
    cases = [
        f"    {c.name}) options='{' '.join(c.options)}' operands='{' '.join(c.operands)}' ;;"
        for c in commands
    ]
    return _script("bash", " ".join(command.name for command in commands), cases)


def _zsh(commands: list[_Command]) -> str:
    cases = []
    for command in commands:
        options = "\n".join(f"        '{o}:{help_}'" for o, help_ in command.options.items())
        cases.append(f"    {command.name})\n      operands=({' '.join(command.operands)})")
        cases.append(f"      options=(\n{options}\n      ) ;;")
    return _script("zsh", "\n".join(f"    '{c.name}:{c.help}'" for c in commands), cases)


def _fish(commands: list[_Command]) -> str:
    lines = []
    for command in commands:
        base = "complete -c handrail -n"
        seen = f"{base} '__fish_seen_subcommand_from {command.name}'"
        lines.append(f"{base} __fish_use_subcommand -f -a {command.name} -d '{command.help}'")
        for option, help_ in command.options.items():
            kind = "-l" if option.startswith("--") else "-s"
            lines.append(f"{seen} {kind} {option.lstrip('-')} -d '{help_}'")
        if command.name in ("attach", "logs", "kill"):
            lines.append(f"{seen} -f -a '(handrail ps -q 2>/dev/null)'")
        elif command.operands:
            lines.append(f"{seen} -f -a '{' '.join(command.operands)}'")
    return "\n".join(lines)
