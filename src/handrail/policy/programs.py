"""Programs that run other programs, as data: where their own words end and a command's begin.

Which options take a value, how many words come first, which options carry a whole script.
``wrappers.py`` uses them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Shells by file name; more than the strict reader parses, since seeing is free here.
SHELLS = frozenset(
    {"bash", "sh", "zsh", "dash", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"}
)
#: Letters that may stand in one word with ``-c`` before a script.
SHELL_VALUE_FLAGS = frozenset("oO")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a program's own words end and the command's begin."""

    #: Options whose value is the next word: single letters, and long names with their dashes.
    values: frozenset[str] = frozenset()
    #: Words of its own before the command, options apart.
    skip: int = 0
    #: NAME=VALUE words may stand before the command.
    assignments: bool = False
    #: These options mean that nothing is run.
    inert: frozenset[str] = frozenset()
    #: The program adds words of its own behind the command.
    appends: bool = False


def wrapper_of(values: str = "", skip: int = 0, inert: str = "", **more: bool) -> Wrapper:
    return Wrapper(frozenset(values.split()), skip, inert=frozenset(inert.split()), **more)


WRAPPERS: dict[str, Wrapper] = {
    # what the shell itself offers; the reserved words turn up here around syntax errors
    **dict.fromkeys(("!", "{", "if", "then", "else", "elif", "while", "until", "do"), wrapper_of()),
    "builtin": wrapper_of(),
    "command": wrapper_of(inert="-v -V"),
    "coproc": wrapper_of(),
    "exec": wrapper_of("a"),
    "time": wrapper_of("f o --format --output"),
    # another user, another environment, another root
    "sudo": wrapper_of(
        "u g h p C r t T U D R --user --group --chdir --host --prompt", assignments=True
    ),
    "doas": wrapper_of("u C"),
    "pkexec": wrapper_of("--user"),
    "runuser": wrapper_of("u g G --user --group"),
    "env": wrapper_of("u C --unset --chdir", assignments=True),
    "chroot": wrapper_of(skip=1),
    "setpriv": wrapper_of(
        "--ruid --euid --rgid --egid --reuid --regid --groups --inh-caps --ambient-caps"
        " --bounding-set --securebits --pdeathsig --selinux-label --apparmor-profile"
    ),
    "unshare": wrapper_of("S G --setuid --setgid --root --wd"),
    "nsenter": wrapper_of("t S G --target --setuid --setgid"),
    "fakeroot": wrapper_of("l s i b"),
    # scheduling, limits, tracing
    "nice": wrapper_of("n --adjustment"),
    "ionice": wrapper_of("c n --class --classdata"),
    "chrt": wrapper_of("T P D", skip=1),
    "taskset": wrapper_of(skip=1),
    "numactl": wrapper_of("i N m C p"),
    "timeout": wrapper_of("k s --kill-after --signal", skip=1),
    "stdbuf": wrapper_of("i o e --input --output --error"),
    "nohup": wrapper_of(),
    "setsid": wrapper_of(),
    "prlimit": wrapper_of(),
    "flock": wrapper_of("w E --timeout --wait --conflict-exit-code", skip=1),
    "systemd-run": wrapper_of("p u E t --property --unit --setenv"),
    "strace": wrapper_of("e o p s a b E I O P S u X"),
    "ltrace": wrapper_of("e o p s a n u"),
    "gdb": wrapper_of("x p c --command --pid"),
    "valgrind": wrapper_of(),
    "busybox": wrapper_of(),
    "toybox": wrapper_of(),
    # another machine type, display, session or confinement
    **dict.fromkeys(("setarch", "arch"), wrapper_of(skip=1)),
    **dict.fromkeys(("linux32", "linux64", "i386", "x86_64", "uname26"), wrapper_of()),
    "xvfb-run": wrapper_of("n e f p s w --server-num --server-args --error-file"),
    **dict.fromkeys(("dbus-run-session", "dbus-launch", "caffeinate", "proot"), wrapper_of()),
    "firejail": wrapper_of(),
    "catchsegv": wrapper_of(),
    "rlwrap": wrapper_of(),
    "unbuffer": wrapper_of(),
    # a file that the shell reads as a script
    ".": wrapper_of(),
    "source": wrapper_of(),
    # one command for many arguments
    "xargs": wrapper_of(
        "I n P L s d E a --max-args --max-procs --delimiter --arg-file", appends=True
    ),
    "parallel": wrapper_of("j I n N a S --jobs --colsep", appends=True),
    "watch": wrapper_of("n --interval"),
    "entr": wrapper_of(),
    # project runners
    "npx": wrapper_of("p c --package"),
}
#: Wrappers with a verb: ``uv run X``.
VERB_WRAPPERS: dict[tuple[str, str], Wrapper] = {
    ("uv", "run"): wrapper_of("p --with --python --project --directory --env-file --extra --group"),
    ("handrail", "run"): wrapper_of("--sandbox --at --token-file --timeout --cwd --env"),
    ("poetry", "run"): wrapper_of(),
    ("pipenv", "run"): wrapper_of(),
    ("hatch", "run"): wrapper_of(),
    ("bundle", "exec"): wrapper_of(),
    ("npm", "exec"): wrapper_of("--package"),
    ("pnpm", "exec"): wrapper_of(),
    ("yarn", "exec"): wrapper_of(),
    ("conda", "run"): wrapper_of("n p --name --prefix --cwd"),
    ("mamba", "run"): wrapper_of("n p --name --prefix --cwd"),
    ("pipx", "run"): wrapper_of("--spec --python"),
    ("uvx", "run"): wrapper_of(),
    ("perf", "stat"): wrapper_of("e o p t"),
    ("perf", "record"): wrapper_of("e o p t F c"),
    ("perf", "trace"): wrapper_of("e o p t"),
    **dict.fromkeys(
        (("docker", "run"), ("podman", "run")),
        wrapper_of(
            "e v w u p h l m --name --env --volume --workdir --user --publish --network --mount"
            " --entrypoint --label --memory --cpus --platform --hostname",
            skip=1,
        ),
    ),
    **dict.fromkeys(
        (("docker", "exec"), ("podman", "exec")), wrapper_of("e w u --env --workdir --user", skip=1)
    ),
    ("kubectl", "exec"): wrapper_of("n c --namespace --container", skip=1),
    **dict.fromkeys(
        (("tmux", "new-session"), ("tmux", "new"), ("tmux", "new-window"), ("tmux", "neww")),
        wrapper_of("s n c t x y F e"),
    ),
    ("tmux", "split-window"): wrapper_of("c t l p F e"),
}
#: Programs with verbs, whose own options come first: ``git -C x push`` is a ``git push``, too.
VERB_PROGRAMS: dict[str, Wrapper] = {
    "git": wrapper_of("C c --git-dir --work-tree --namespace --exec-path --config-env"),
    "docker": wrapper_of("c H l --config --context --host --log-level"),
    "podman": wrapper_of("c --connection --url --root --runroot"),
    "kubectl": wrapper_of("n s --namespace --context --cluster --kubeconfig --server --user"),
    "helm": wrapper_of("n --namespace --kube-context --kubeconfig"),
    "terraform": wrapper_of(),
    "gh": wrapper_of("R --repo --hostname"),
    "npm": wrapper_of("C w --prefix --workspace --registry"),
    "pnpm": wrapper_of("C F --dir --filter"),
    "yarn": wrapper_of("--cwd"),
    "cargo": wrapper_of("C Z --config --color"),
    "uv": wrapper_of("--directory --project --config-file --cache-dir"),
    "pip": wrapper_of("--python --log --proxy --cache-dir"),
    "systemctl": wrapper_of("H M p t --host --machine --property --type"),
}
#: Options of these programs that carry a whole script.
SCRIPT_OPTIONS: dict[str, frozenset[str]] = {
    "su": frozenset({"-c", "--command"}),
    "runuser": frozenset({"-c", "--command"}),
    "script": frozenset({"-c", "--command"}),
    "flock": frozenset({"-c", "--command"}),
    "env": frozenset({"-S", "--split-string"}),
    "nix-shell": frozenset({"--run", "--command"}),
    "npx": frozenset({"-c", "--call"}),
    "npm": frozenset({"-c", "--call"}),
    "tar": frozenset({"--checkpoint-action=exec", "--to-command", "--use-compress-program"}),
    "rsync": frozenset({"-e", "--rsh"}),
    "mapfile": frozenset({"-C"}),
    "readarray": frozenset({"-C"}),
    "tmux": frozenset({"-c"}),
}
FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
#: Programs that take a command from their stdin to run it later.
READS_SCRIPT = frozenset({"at", "batch"})
SOURCES = frozenset({".", "source"})
STDIN_NAMES = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
STDIN_FILES = tuple((name,) for name in STDIN_NAMES)
#: The program that starts programs: ``/lib64/ld-linux-x86-64.so.2 /bin/rm``.
LOADER = re.compile(r"ld(-linux[\w.-]*|-musl[\w.-]*|\.so|64)?\.so\.\d+|ld\.so")
LOADER_OPTIONS = wrapper_of(
    "--library-path --preload --audit --argv0 --inhibit-rpath --glibc-hwcaps-mask"
)
SSH = wrapper_of("b c D E e F I i J L l m O o p Q R S W w")
GIT_PROGRAMS = frozenset({
    "core.pager", "core.editor", "core.sshcommand", "core.fsmonitor", "core.askpass",
    "sequence.editor", "diff.external", "credential.helper", "gpg.program",
})  # fmt: skip
#: Interpreters and the options that carry a program; none: any argument may.
CODE_OPTIONS: dict[str, frozenset[str]] = {
    "python": frozenset({"-c"}),
    "pypy": frozenset({"-c"}),
    "perl": frozenset({"-e", "-E"}),
    "ruby": frozenset({"-e"}),
    "node": frozenset({"-e", "-p", "--eval", "--print"}),
    "bun": frozenset({"-e", "--eval"}),
    "php": frozenset({"-r"}),
    "lua": frozenset({"-e"}),
    "tclsh": frozenset({"-c"}),
    "expect": frozenset({"-c"}),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), frozenset[str]()),
}
STRING = re.compile(r"""(["'`])((?:(?!\1)[^\\\n]|\\.)+)\1""")
