"""``handrail completion``: shell completions, made from the parser itself."""

from __future__ import annotations

import argparse

#: Commands that take the id of a detached process or workspace.
_WITH_ID = ("attach", "logs", "kill")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "completion",
        help="print completions for a shell",
        description='Print completions for a shell; use: eval "$(handrail completion bash)".',
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print the completions."""
    print(render(args.shell))
    return 0


def render(shell: str) -> str:
    """The completions for one shell."""
    commands = _describe()
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


class _Command:
    """A command's name, its help, and its options with theirs."""

    def __init__(self, name: str, help_: str, parser: argparse.ArgumentParser) -> None:
        self.name = name
        self.help = help_
        self.options = _options(parser)
        #: Its sub-commands.
        self.own: list[str] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for own, below in action.choices.items():
                    self.own.append(own)
                    self.options |= _options(below)


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {
        option: " ".join((action.help or "").split()).replace("%(default)s", str(action.default))
        for action in parser._actions
        for option in action.option_strings
        if action.help != argparse.SUPPRESS
    }


def _describe() -> list[_Command]:
    from handrail.cli.app import build_parser

    parser: argparse.ArgumentParser = build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    return [_Command(n, helps.get(n, ""), p) for n, p in commands.choices.items()]


def _bash(commands: list[_Command]) -> str:
    cases = "\n".join(
        f"    {command.name}) words='{' '.join(command.options)}' ;;" for command in commands
    )
    own = "".join(
        f"\n    {c.name}:*) [ \"$COMP_CWORD\" -eq 2 ] && words='{' '.join(c.own)}' &&"
        ' COMPREPLY=($(compgen -W "$words" -- "$current")) && return\n'
        '      COMPREPLY=($(compgen -f -- "$current")) ;;'
        for c in commands
        if c.own
    )
    return f"""_handrail() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} words=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(c.name for c in commands)} --help --version' -- "$current"))
    return
  fi
  if [[ " ${{COMP_WORDS[*]:2:COMP_CWORD-2}} " == *" -- "* ]]; then
    COMPREPLY=($(compgen -c -f -- "$current"))
    return
  fi
  case $command in
{cases}
  esac
  case $command:$current in
    *:-*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    {"|".join(f"{name}:*" for name in _WITH_ID)})
      COMPREPLY=($(compgen -W "$(handrail ps -q 2>/dev/null)" -- "$current")) ;;
    completion:*) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$current")) ;;{own}
    run:*|sandbox:*) COMPREPLY=($(compgen -c -f -- "$current")) ;;
    *) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -F _handrail handrail"""


def _zsh(commands: list[_Command]) -> str:
    names = "\n".join(f"    '{c.name}:{_quoted(c.help)}'" for c in commands)
    cases = "\n".join(
        f"    {c.name})\n      options=(\n"
        + "\n".join(f"        '{o}:{_quoted(h)}'" for o, h in c.options.items())
        + "\n      ) ;;"
        for c in commands
    )
    own = "".join(
        f"  elif [[ ${{words[2]}} == {c.name} && CURRENT -eq 3 ]]; then\n"
        f"    compadd -- {' '.join(c.own)}\n"
        for c in commands
        if c.own
    )
    return f"""#compdef handrail
_handrail() {{
  local -a commands options
  commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case ${{words[2]}} in
{cases}
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    _describe option options
  elif [[ ${{words[2]}} == ({"|".join(_WITH_ID)}) ]]; then
    compadd -- ${{(f)"$(handrail ps -q 2>/dev/null)"}}
  elif [[ ${{words[2]}} == completion ]]; then
    compadd -- bash zsh fish
{own}  else
    _files
  fi
}}
compdef _handrail handrail"""


def _fish(commands: list[_Command]) -> str:
    lines = []
    for command in commands:
        lines.append(
            f"complete -c handrail -n __fish_use_subcommand -f -a {command.name}"
            f" -d '{_quoted(command.help)}'"
        )
        seen = f"'__fish_seen_subcommand_from {command.name}'"
        for option, help_ in command.options.items():
            kind = "-l" if option.startswith("--") else "-s"
            name = option.lstrip("-")
            lines.append(f"complete -c handrail -n {seen} {kind} {name} -d '{_quoted(help_)}'")
    with_id = f"'__fish_seen_subcommand_from {' '.join(_WITH_ID)}'"
    lines.append(f"complete -c handrail -n {with_id} -f -a '(handrail ps -q 2>/dev/null)'")
    for command in commands:
        if command.own:
            seen = f"'__fish_seen_subcommand_from {command.name}'"
            lines.append(f"complete -c handrail -n {seen} -f -a '{' '.join(command.own)}'")
    shells = "'__fish_seen_subcommand_from completion'"
    lines.append(f"complete -c handrail -n {shells} -f -a 'bash zsh fish'")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Quote for a shell's single quotes, without the colon that zsh splits at."""
    return text.replace("'", "").replace(":", ",")
