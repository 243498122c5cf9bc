"""``handrail sandbox``: one command, sandboxed, with nothing of ours left behind."""

from __future__ import annotations

import os

from handrail import exit_codes
from handrail.cli import foreground_command
from handrail.cli.run_fast import NETWORKS, not_a_network
from handrail.secret_variables import forget_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import NoReturn

    from handrail.sandbox.profile import Intent

USAGE = """\
usage: handrail sandbox [OPTIONS] [--] COMMAND [ARGUMENT...]

Run one command with no more than a profile allows; its exit code is passed on.

options:
  --profile P        workspace-write (default), read-only, off, or permissions as JSON
                     ('{"type": "managed", ...}'), or @FILE with such JSON
  --root DIR         a project root, may be given again (default: the current directory)
  --writable DIR     one more directory that may be written, may be given again
  --network [N]      open (also without N), off (default), or managed: the hosts of these lists
  --allow-host P     let it reach this host, as in '*.example.org:443', may be given again
  --deny-host P      never let it reach this host, may be given again
  --ask-host P       ask about this host, although others like it are allowed
  --allow-preset N   let it reach the hosts of a package index, as in pypi
  --unlisted W       hosts on no list: ask (default) or deny
  --on-network-denial W  a refused host: report (default) or end the command
  -C, --cwd DIR      where the command starts (default: the current directory)
  --json             collect its output, and print it with the exit code as JSON
  -h, --help         show this

examples:
  handrail sandbox -- make -j4
  handrail sandbox --profile read-only -- pytest -q
  handrail sandbox --writable .git -- git commit -m x
"""


#: Options of a managed network, each with a value.
_LISTS = (
    "--allow-host",
    "--deny-host",
    "--ask-host",
    "--allow-preset",
    "--unlisted",
    "--on-network-denial",
)
MANAGED = "managed"
_NETWORK = "--network takes off, open or managed, or nothing (open), not {}; see --help"


def _with_network(words: list[str]) -> list[str]:
    """The words, with ``--network`` and its value as one; alone it means open."""
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-"):
            return [*out, word, *rest]
        if word == "--network":
            if rest and not_a_network(rest[0], rest[1:]):
                raise foreground_command.Usage(_NETWORK.format(rest[0]))
            value = rest.pop(0) if rest[:1] and rest[0] in NETWORKS else "open"
            word = f"--network={value}"
        out.append(word)
        if "=" not in word and word != "--json" and rest:
            out.append(rest.pop(0))  # its value
    return out


class Options:
    """The parsed command line."""

    def __init__(self, words: list[str]) -> None:
        valued = ("--profile", "--root", "--writable", "--cwd", "--network", *_LISTS)
        given, self.command = foreground_command.read_options(
            _with_network(words), valued, ("--json",)
        )
        self.profile = given.get("--profile", ["workspace-write"])[-1]
        self.roots = given.get("--root", [])
        self.writable = given.get("--writable", [])
        self.network = given.get("--network", [""])[-1]
        self.hosts = {name: given[name] for name in _LISTS if name in given}
        if self.network not in ("", *NETWORKS):
            raise foreground_command.Usage(_NETWORK.format(self.network))
        if self.hosts and self.network != MANAGED:
            raise foreground_command.Usage(
                "lists of hosts are for --network managed; add that, or leave them out"
            )
        self.json = "--json" in given
        self.cwd = given.get("--cwd", [""])[-1]


def main(words: list[str]) -> int:
    """Run the command; its exit code, or one of ours."""
    if words[:1] in (["-h"], ["--help"]):
        from handrail.cli import stdio

        stdio.take_over()
        print(USAGE, end="")
        return stdio.settle(0)
    from handrail.errors import HandrailError

    try:
        options = Options(words)
        if options.json:
            from handrail.cli import sandbox_json

            return sandbox_json.run(options.command, lambda: _begin(options), _as_json)
        code = _begin(options)
        # Nothing is left to be done, and taking an interpreter down takes a while.
        os._exit(code)
    except (foreground_command.Usage, foreground_command.NotRun, HandrailError) as error:
        if isinstance(error, foreground_command.Usage) and "--json" in words:
            from handrail.cli import stdio

            stdio.take_over()
            print(_as_json(error))
            return stdio.settle(_code(error))
        foreground_command.complain(str(error), "handrail sandbox: ")
        return _code(error)


def _code(error: Exception) -> int:
    from handrail.start_errors import UsageError

    if isinstance(error, foreground_command.Usage | UsageError):
        return 2
    return error.code if isinstance(error, foreground_command.NotRun) else exit_codes.OWN_FAILURE


def _as_json(error: Exception) -> str:
    from handrail.cli import error_output

    return error_output.as_json(error, _code(error))


def _begin(options: Options) -> int:
    if not options.cwd or not all(
        path.startswith("/") for path in (options.cwd, *options.roots, *options.writable)
    ):
        here = foreground_command.current_directory()
        options.cwd = os.path.join(here, options.cwd)
        options.roots = [os.path.join(here, path) for path in options.roots]
        options.writable = [os.path.join(here, path) for path in options.writable]
    cwd = os.path.normpath(options.cwd)
    if not os.path.isdir(cwd):
        raise foreground_command.NotRun(f"{cwd} is no directory; give another --cwd")
    forget_variables()  # for servers far away, and for no command
    intent = _intent(options, cwd)
    if options.network == MANAGED:
        if intent.is_off:
            raise foreground_command.Usage(
                "--network managed needs a sandbox; give another profile"
            )
        from handrail.cli import sandbox_managed

        return sandbox_managed.run(intent, options.command, cwd, options.hosts)
    if intent.is_off:
        _become(options.command, cwd)
    return foreground_command.run_sandboxed(intent, options.command, cwd, surface="SANDBOX_COMMAND")


def _become(command: list[str], cwd: str) -> NoReturn:
    """Run it without a sandbox; raises NotRun."""
    from handrail.process.foreground.run import keep_to_ourselves

    keep_to_ourselves()
    try:
        os.chdir(cwd)
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        raise foreground_command.not_started(command[0], error) from None


def _intent(options: Options, cwd: str) -> Intent:
    if not options.roots:  # --root / says that it is meant
        foreground_command.check_root(options.profile, cwd)
    roots = tuple(options.roots or [cwd])
    is_open = options.network == "open"
    intent = foreground_command.named_intent(options.profile, roots, network=is_open)
    if intent is None:
        from handrail.cli.profile_option import read_permissions

        intent = read_permissions(options.profile)
        if is_open:
            intent = intent._replace(network=True)
    intent = intent._replace(workspace_roots=tuple(map(os.fsencode, roots)))
    return foreground_command.with_writable(intent, options.writable, cwd)


def add_arguments(parser: ArgumentParser) -> None:
    """Describe the options for completions and the docs; ``main`` reads its words by itself."""
    parser.description = USAGE.splitlines()[2]
    for line in USAGE.splitlines():
        if line.startswith("  -") and "--help" not in line:
            said, _, text = line.strip().partition("  ")
            names = [word.split()[0] for word in said.split(", ")]
            value = said.split(", ")[-1].partition(" ")[2].strip("[]")
            if said.endswith("]"):
                parser.add_argument(*names, metavar=value, help=text.strip(), nargs="?")
            elif value:
                parser.add_argument(*names, metavar=value, help=text.strip())
            else:
                parser.add_argument(*names, action="store_true", help=text.strip())
    parser.add_argument("words", nargs="...", metavar="-- CMD", help="the command and its words")


def run(args: Namespace) -> int:
    """Run the command whose words argparse has left alone."""
    return main(args.words)
