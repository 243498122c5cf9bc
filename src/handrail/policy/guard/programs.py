"""Programs and variables that can run something, as data for the guard.

A program that is in none of these tables is ordinary: whatever its arguments are, it runs no
program that they name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from handrail.policy.guard.words import Word

DECLARATIONS = frozenset({"declare", "typeset", "local", "export", "readonly"})
#: Never read: editors, debuggers, terminals, schedulers, and other evaluators.
OPAQUE = frozenset({
    "alias", "enable", "hash", "compgen", "complete", "compopt", "bind", "fc", "coproc", "zmodload",
    "zle", "autoload", "sched", "vared", "emulate", "zargs", "r", "zcompile", "disable",
    "functions",
    "vi", "vim", "nvim", "ex", "view", "vimdiff", "gvim", "ed", "red", "emacs", "nano", "pico",
    "joe",
    "mc", "gdb", "lldb", "script", "scriptreplay", "expect", "unbuffer", "screen", "tmux", "byobu",
    "parallel", "sem", "at", "batch", "crontab", "socat", "nc", "ncat", "netcat", "telnet", "ftp",
    "lftp", "sftp", "dc", "tclsh", "wish", "xterm", "gnome-terminal", "konsole", "systemd-run",
    "start-stop-daemon", "su", "sg", "newgrp", "runuser", "pkexec", "capsh", "runcon", "chroot",
    "nsenter", "unshare", "bwrap", "firejail", "proot", "fakeroot", "fakechroot", "flatpak", "snap",
    "handrail", "codex", "watch", "entr", "inotifywait", "hyperfine", "perf", "ltrace", "strace",
    "valgrind", "mpirun", "mpiexec", "srun", "rlwrap", "xdg-open", "open", "run-parts",
    "install-info", "dbus-run-session", "dbus-launch", "xvfb-run", "torsocks", "proxychains",
    "proxychains4", "eatmydata", "chronic", "ts", "ifne", "pee", "lckdo", "daemonize", "nix-shell",
    "nix", "guix", "oc", "ansible", "ansible-playbook", "salt", "vagrant", "aptitude", "yum",
    "dnf", "mysql", "mariadb", "psql", "mongo",
    "mongosh", "redis-cli", "gnuplot", "octave", "R", "Rscript", "ghci", "irb", "erl", "iex",
    "sbcl",
    "clisp", "guile", "racket", "scheme", "jshell", "groovy", "scala", "m4", "tex", "latex",
    "pdflatex", "ssh-agent", "ssh-keygen", "gpg-agent", "xsltproc", "busctl", "gcore", "uclampset",
    "prlimit", "setpriv", "catchsegv", "linux32", "linux64", "i386", "x86_64", "uname26", "arch",
    "setarch", "caffeinate", "numactl", "choom", "cgexec", "tsp", "nq", "direnv", "mise", "asdf",
    "fzf", "sk", "peco", "ranger", "nnn", "mutt", "mail", "mailx", "sendmail", "lynx", "w3m",
    "elinks", "links", "csh", "tcsh", "fish", "ksh", "mksh", "rbash", "rksh", "nu", "elvish",
    "xonsh",
    "pwsh", "powershell", "osascript", "wine", "qemu-user", "rr", "bpftrace", "stap", "dtrace",
    "openvt", "setterm", "agetty", "login", "doas", "logrotate", "coreutils", "msgexec",
    "msgfilter",
    "sshpass", "setuidgid", "chpst", "envdir", "softlimit", "tini", "dumb-init", "gosu", "su-exec",
    "execlineb", "faketime", "libtool", "ccache", "distcc", "sccache", "cpulimit", "trickle",
    "tsocks",
    "uftrace", "trace-cmd", "memusage", "sotruss", "systemd-nspawn", "systemd-cat",
    "systemd-inhibit", "machinectl", "lxc", "lxc-attach", "nerdctl", "ctr", "runc", "crun",
    "buildah",
    "toolbox", "distrobox", "xinit", "startx", "visudo", "sudoedit", "anacron", "procmail",
    "formail",
    "mosh", "pssh", "pdsh", "clush", "stunnel", "openvpn", "tcpserver", "xinetd", "nsjail",
    "minijail0", "landrun", "pgbench", "groff", "troff", "xmllint", "jexec", "editor", "rvim",
    "rview", "sensible-editor", "select-editor", "scriptlive", "nroff", "pic", "gpic", "json_pp",
    "prove", "pdb", "ipython", "bpython", "ptpython", "jrunscript", "ssh-copy-id", "scalar",
    "nodemon", "concurrently", "watchexec", "xelatex", "lualatex", "latexmk", "gs",
})  # fmt: skip

Check = Callable[[Sequence[Word]], bool]


def _any(words: Sequence[Word]) -> bool:
    return True


def _without(*prefixes: str) -> Check:
    def check(words: Sequence[Word]) -> bool:
        values = [word.value for word in words[1:]]
        return not any(value is None or value.startswith(prefixes) for value in values)

    return check


def _git_lists(words: Sequence[Word]) -> bool:
    verb, rest = words[1].value if len(words) > 1 else None, words[2:]
    if verb == "rev-parse":
        return all(re.fullmatch(r"--[\w-]+|HEAD|@", word.value or "") for word in rest)
    if verb in ("diff", "log"):
        lists = (
            ("--name-only", "--name-status") if verb == "diff" else ("--format=%H", "--format=%h")
        )
        return any(word.value in lists for word in rest) and len(rest) <= 3
    return verb in ("ls-files", "status", "branch") and _without("--format", "-c")(words)


def _names_files(words: Sequence[Word]) -> bool:
    """``grep -rl``, ``rg --files``: names of files, and not what is in them."""
    options = [word.value or "" for word in words[1:]]
    return any(
        re.fullmatch(r"-[A-Za-z]*[lL][A-Za-z]*|--files(?:-with(?:out)?-match(?:es)?)?", option)
        for option in options
    ) and not any(option.startswith("--label") for option in options)


def names_a_program(words: Sequence[Word]) -> bool:
    """``which X``, ``command -v X``: prints the path of a program."""
    options = [word.value for word in words[1:-1]]
    return {
        "which": not options,
        "command": options == ["-v"],
        "type": options in (["-p"], ["-P"]),
    }.get(words[0].value or "", False) and words[-1].value is not None


#: Commands that print existing things: paths, mostly.
LISTERS: dict[str, Check] = {
    **dict.fromkeys(
        ("ls", "pwd", "nproc", "whoami", "id", "hostname", "uname", "mktemp", "wc"), _any,
    ),
    "find": _without("-printf", "-exec", "-ok", "-fprint"),
    "fd": _without("-x", "-X", "--exec", "--format"),
    "grep": _names_files,
    "rg": _names_files,
    "git": _git_lists,
    "seq": _without("-f", "-s", "--f", "--s"),
}  # fmt: skip
#: Programs that print a path which they make of their words.
PATH_PRINTERS = frozenset({"dirname", "realpath", "basename"})
FILTERS = frozenset({"sort", "uniq", "head", "tail", "grep", "wc", "cat", "tac"})


def filters(words: Sequence[Word]) -> bool:
    """True if this passes on what it is fed, and prints nothing of files or of its own words."""
    name = words[0].value if words else None
    operands = [
        word
        for word, before in zip(words[1:], words, strict=False)
        if not (word.value or "").startswith("-")
        and before.value not in ("-n", "-c", "-k", "-t", "-e", "-A", "-B", "-C", "-m")
    ]
    has_pattern = any(
        re.match(r"-[a-zA-Z]*[ef]|--(?:regexp|file)", w.value or "") for w in words[1:]
    )
    return name in FILTERS and len(operands) <= (name == "grep" and not has_pattern)


def _counts(words: Sequence[Word]) -> bool:
    """``grep -c PATTERN [FILE]`` prints a number; for several files it prints the names."""
    options = [word.value for word in words[1:] if (word.value or "").startswith("-")]
    counts = any(option in ("-c", "-ic", "-vc", "-cv", "-ci") for option in options)
    quiet = all(re.fullmatch(r"-[civEFwx]+", option or "") for option in options)
    return counts and quiet and len(words) - len(options) <= 3 and all(word.one for word in words)


def _prints_seconds(words: Sequence[Word]) -> bool:
    return (
        all(re.fullmatch(r"\+[%sNYmdHMSj]+|-u", word.value or "") for word in words[1:])
        and len(words) > 1
    )


def _has(option: str) -> Check:
    return lambda words: any(word.value == option for word in words[1:])


def _reads_stdin(words: Sequence[Word]) -> bool:
    return all((word.value or "").startswith("-") for word in words[1:])


NUMBER_PRINTERS: dict[str, Check] = {
    "wc": _reads_stdin,
    "nproc": _any,
    "grep": _counts,
    "date": _prints_seconds,
    "id": _has("-u"),
}


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that runs the command behind its own words."""

    #: Letters of options; a colon behind one: it takes a value.
    options: str = ""
    #: Long options without, and with ``=`` with a value.
    long: tuple[str, ...] = ()
    #: Words of its own before the command.
    skip: int = 0
    assignments: bool = False
    #: These options mean that nothing is run.
    inert: tuple[str, ...] = ()
    #: Words are added behind the command.
    appends: bool = False


LAUNCHERS: dict[str, Launcher] = {
    "command": Launcher("p", inert=("-v", "-V")),
    "builtin": Launcher(),
    "exec": Launcher("cla:"),
    "time": Launcher("pvaqf:o:", ("--format=", "--output=", "--verbose", "--portability")),
    "env": Launcher(
        "i0vu:C:", ("--ignore-environment", "--unset=", "--chdir=", "--null", "--debug"),
        assignments=True,
    ),
    "nice": Launcher("n:", ("--adjustment=",)),
    "ionice": Launcher("c:n:t", ("--class=", "--classdata=", "--ignore")),
    "chrt": Launcher("bfiormR", ("--other", "--batch", "--idle", "--fifo", "--rr"), skip=1),
    "taskset": Launcher("ac", ("--cpu-list", "--all-tasks"), skip=1),
    "timeout": Launcher(
        "k:s:v", ("--kill-after=", "--signal=", "--foreground", "--preserve-status", "--verbose"),
        skip=1,
    ),
    "stdbuf": Launcher("i:o:e:", ("--input=", "--output=", "--error=")),
    "nohup": Launcher(),
    "setsid": Launcher("fwc", ("--fork", "--wait", "--ctty")),
    "flock": Launcher(
        "sxeunFw:E:o", ("--shared", "--exclusive", "--nonblock", "--timeout=", "--wait=", "--close",
                        "--no-fork", "--verbose", "--nb"), skip=1,
    ),
    "busybox": Launcher(),
    "toybox": Launcher(),
    "sudo": Launcher(
        "nEHSkbPu:g:", ("--user=", "--group=", "--preserve-env", "--non-interactive", "--set-home"),
        assignments=True,
    ),
    "xargs": Launcher(
        "0rtxon:P:L:I:d:s:a:E:",
        ("--null", "--no-run-if-empty", "--verbose", "--max-args=", "--max-procs=", "--max-lines=",
         "--delimiter=", "--arg-file=", "--replace=", "--max-chars=", "--exit",
         "--process-slot-var="),
        appends=True,
    ),
    "npx": Launcher("yqp:", ("--yes", "--no", "--no-install", "--quiet", "--package=")),
    "uvx": Launcher("qp:", ("--from=", "--with=", "--python=", "--quiet", "--offline")),
}  # fmt: skip
_RUNNER = Launcher("q", ("--quiet", "--offline"))
#: Launchers with a verb: ``uv run X``.
VERB_LAUNCHERS: dict[tuple[str, str], Launcher] = {
    ("uv", "run"): Launcher(
        "qp:", ("--with=", "--python=", "--project=", "--directory=", "--extra=", "--group=",
        "--dev",
                "--no-dev", "--no-sync", "--frozen", "--locked", "--offline", "--quiet",
                "--all-extras",
                "--no-project", "--isolated"),
    ),
    ("poetry", "run"): _RUNNER, ("pipenv", "run"): _RUNNER, ("hatch", "run"): _RUNNER,
    ("pdm", "run"): _RUNNER, ("rye", "run"): _RUNNER, ("bundle", "exec"): _RUNNER,
    **dict.fromkeys(
        (("npm", "exec"), ("npm", "x")), Launcher("y", ("--yes", "--package=", "--no"))
    ),
    ("pnpm", "exec"): _RUNNER,
    ("yarn", "exec"): _RUNNER, ("pipx", "run"): Launcher("", ("--spec=", "--python=")),
    ("uv", "tool"): Launcher(skip=99),
}  # fmt: skip
#: Verbs of ordinary programs that run what cannot be seen.
OPAQUE_VERBS = frozenset({
    ("docker", "run"), ("docker", "exec"), ("docker", "compose"), ("podman", "run"),
    ("podman", "exec"), ("kubectl", "exec"), ("kubectl", "run"), ("kubectl", "debug"), ("conda",
    "run"), ("mamba", "run"), ("npm", "config"), ("npm", "set"),
    ("npm", "c"), ("npm", "explore"), ("npm", "edit"), ("npm", "pkg"), ("ip", "netns"),
    ("ip", "vrf"), ("cargo", "watch"), ("pnpm", "dlx"), ("yarn", "dlx"), ("bun", "x"),
    ("cargo", "config"), ("gh", "alias"),
    ("gh", "extension"), ("gh", "codespace"),
})  # fmt: skip

#: Options by which compilers run something, also in variables like CFLAGS.
COMPILER_OPTIONS = (
    "-B", "-wrapper", "-fplugin", "-specs", "-fuse-ld", "-Xclang", "--ld-path", "@", "--specs",
)  # fmt: skip
COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "cpp", "c89", "c99", "gfortran", "gnat")
FLAG_VARIABLES = re.compile(r"\w*(?:FLAGS|LIBS|LDLIBS)")
RUNNING_FLAGS = re.compile(
    r"(?:^|[\s=])(?:-B|-wrapper|-fplugin|-?-specs|-fuse-ld|-Xclang|@|--ld-path)|linker"
)

#: Options that run something; a long one counts from its shortest abbreviation on.
RUNNING_OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tar": ("IF", ("--use-compress-program", "--to-command", "--checkpoint-action", "--rsh-command",
                   "--info-script", "--new-volume-script")),
    "split": ("", ("--filter",)),
    **dict.fromkeys(
        ("apt", "apt-get", "apt-cache", "apt-config", "apt-mark"),
        ("oc", ("--option", "--config-file")),
    ),
    "dpkg": ("", ("--pre-invoke", "--post-invoke", "--admindir", "--instdir", "--root")),
    "rpm": ("E", ("--eval", "--define", "--pipe", "--macros", "--rcfile", "--load")),
    "zip": ("T", ("--unzip-command", "-TT", "--test")),
    "sort": ("", ("--compress-program",)),
    "install": ("", ("--strip-program",)),
    "scp": ("SoDF", ()),
    "wget": ("e", ("--use-askpass", "--execute", "--config")),
    "curl": ("K", ("--config",)),
    "man": ("PHC", ("--pager", "--html", "--config-file")),
    "less": ("kKoOtT", ("--lesskey-file", "--lesskey-src")),
    "fd": ("xX", ("--exec", "--exec-batch")),
    "fdfind": ("xX", ("--exec", "--exec-batch")),
    "rg": ("", ("--pre", "--hostname-bin")),
    "ack": ("", ("--pager", "--ackrc")),
    "ag": ("", ("--pager",)),
    "bat": ("", ("--pager", "--config-file")),
    "go": ("", ("-exec", "-toolexec", "-vettool", "-overlay")),
    "cargo": ("", ("--config",)),
    **dict.fromkeys(COMPILERS, ("", COMPILER_OPTIONS)),
    "ld": ("", ("-plugin", "--plugin")),
    "npm": ("c", ("--script-shell", "--call", "--node-options", "--globalconfig", "--userconfig",
                  "--shell", "--editor", "--viewer", "--git")),
    "pnpm": ("c", ("--script-shell", "--shell-mode")),
    "pip": ("", ("--config-settings", "--global-option", "--build-option", "--python",
                 "--editor")),
    "patch": ("", ("--get",)),
    "ctags": ("", ("--options", "--optlib-dir")),
    "gpg": ("", ("--agent-program", "--dirmngr-program", "--photo-viewer", "--exec-path")),
    "ctest": ("S", ("--build-and-test", "--test-command", "--script", "--build-")),
    "pandoc": ("FL", ("--filter", "--lua-filter", "--pdf-engine", "--defaults")),
    "ninja": ("", ("-f",)),
    "xdotool": ("", ("exec",)),
    "vitest": ("", ("--shell",)),
    "nmap": ("", ("--script",)),
    "tcpdump": ("z", ("--postrotate-command",)),
}  # fmt: skip
#: ``find`` runs these, or writes files of any name by them.
FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

GIT_CONFIG_KEYS = re.compile(
    r"(?:user\.(?:name|email)|color\..*|core\.(?:quotepath|autocrlf|longpaths|filemode|ignorecase"
    r"|eol|safecrlf)|advice\..*|init\.defaultbranch|commit\.gpgsign|tag\.gpgsign|safe\.directory"
    r"|pull\.(?:rebase|ff)|push\.default|merge\.(?:conflictstyle|ff)|rebase\.autostash"
    r"|fetch\.prune|diff\.(?:renames|renamelimit|algorithm)|log\.showsignature|gc\.auto"
    r"|http\.(?:sslverify|postbuffer|lowspeedlimit|lowspeedtime)|protocol\.version)"
)
GIT_OPTIONS = (
    "--exec", "--extcmd", "--upload-pack", "--receive-pack", "--open-files-in-pager", "--config",
    "--template", "--to-cmd", "--cc-cmd", "--header-cmd", "--smtp-server", "--exec-path", "--tool",
    "--config-env", "--ext-diff", "--textconv", "--strategy", "--credential", "--editor",
    "--gpg-program", "--server-option",
)  # fmt: skip
GIT_OPAQUE = frozenset({
    "filter-branch", "send-email", "difftool", "mergetool", "instaweb", "daemon", "credential",
    "for-each-repo", "hook", "shell", "remote-ext", "upload-pack", "receive-pack", "fast-import",
    "p4",
    "svn", "gui", "citool", "web--browse", "help", "imap-send", "var", "cvsserver", "http-backend",
    "maintenance", "bisect--helper", "rebase--interactive", "request-pull", "column", "archive",
})  # fmt: skip

SSH_SETTINGS = re.compile(
    r"(?:StrictHostKeyChecking|UserKnownHostsFile|ConnectTimeout|BatchMode|LogLevel|IdentitiesOnly"
    r"|Port|User|ServerAliveInterval|ServerAliveCountMax|PasswordAuthentication|ConnectionAttempts"
    r")[= ][\w./-]+", re.IGNORECASE,
)  # fmt: skip
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
#: Interpreters that are given a file; their program texts on the command line are not read.
INTERPRETERS = frozenset({
    "ruby", "php", "lua", "luajit", "julia", "deno", "bun", "ts-node", "tsx", "java", "pypy",
    "pypy3", "node", "nodejs",
})  # fmt: skip
#: Tools that run what the project's own files say.
PROJECT_RUNNERS = frozenset({
    "make", "gmake", "ninja", "npm", "pnpm", "yarn", "npx", "pytest", "py.test", "tox", "nox",
    "cargo",
    "go", "just", "task", "rake", "gradle", "gradlew", "mvn", "ant", "cmake", "ctest", "meson",
    "bazel",
    "jest", "vitest", "mocha", "tsc", "mypy", "ruff", "eslint", "pip", "pip3", "uv", "poetry",
    "pre-commit", "docker-compose", "docker", "bundle", "composer", "mix", "stack", "cabal",
    "dotnet",
    "swift", "zig", "coverage",
})  # fmt: skip
PROJECT_FILES = frozenset({
    "taskfile.yml", "taskfile.yaml", ".babelrc", ".eslintrc", ".yarnrc", ".yarnrc.yml",
    "meson.build", "vagrantfile", "sconstruct", "wscript", ".pre-commit-config.yaml",
    "cmakepresets.json", ".mocharc.json", ".mocharc.yml", ".pylintrc", ".coveragerc",
    "tsconfig.json",
    "makefile", "gnumakefile", "package.json", "justfile", "rakefile", "gemfile", "dockerfile",
    "cmakelists.txt", "pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", "cargo.toml",
    ".npmrc",
    "build.gradle", "pom.xml", "compose.yml", "compose.yaml", "docker-compose.yml", ".envrc",
})  # fmt: skip
PROGRAM_FILE = re.compile(
    r"\.(?:py|pth|js|mjs|cjs|ts|tsx|jsx|sh|bash|zsh|mk|go|rs|c|h|cc|cpp|hpp|java|kt|rb|pl|pm|php|lua"
    r"|ninja|cmake|gradle|awk|sed|so|node|ini|toml|cfg)$"
)
#: These make a file whose name is that of another without its end.
DECOMPRESSORS = frozenset({
    "gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "uncompress", "lz4",
    "lzma", "unlzma", "lzip", "brotli",
})  # fmt: skip
#: Whatever these are given may become a file of that name.
WRITERS = frozenset({
    "cp", "mv", "ln", "link", "install", "tee", "dd", "rsync", "scp", "curl", "wget", "split",
    "sponge", "xxd", "uudecode", "openssl", "truncate", "mknod", "mkfifo", "shuf", "sort",
    "objcopy",
    "symlink", "aria2c", "base64", "uniq", "cpp", *DECOMPRESSORS, "ed",
    "patch",
})  # fmt: skip
#: Writing to these has no effect on files.
HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "/dev/tty"})

#: Variables that tell shells, loaders and programs what to run or load.
LIVE_VARIABLES = re.compile(
    r"(?:BASH_ENV|ENV|PS[0-4]|PROMPT|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|BASH_\w+|COMMAND_NOT_FOUND\w*"
    r"|LD_\w+|DYLD_\w+|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH|GIT_\w+|SSH_\w+|SUDO_\w+|RSYNC_\w+"
    r"|CVS_RSH|TAR_OPTIONS|TAPE|PERL5\w*|PERLLIB|RUBYOPT|RUBYLIB|NODE_OPTIONS|JAVA_TOOL_OPTIONS"
    r"|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|MAKEFLAGS|GNUMAKEFLAGS|MFLAGS|MAKEFILES|MAKE|SHELL|HOME"
    r"|XDG_CONFIG_\w+|XDG_DATA_\w+|LESS\w*|\w*PAGER|\w*EDITOR|VISUAL|BROWSER|FCEDIT|TERMINFO\w*"
    r"|ZDOTDIR|FPATH|fpath|precmd\w*|preexec\w*|chpwd\w*|CDPATH|INPUTRC|AWKPATH|AWKLIBPATH"
    r"|PYTHON(?:STARTUP|HOME|BREAKPOINT|INSPECT|WARNINGS|USERBASE|EXECUTABLE|PLATLIBDIR)"
    r"|FZF_\w+|RUSTC\w*|CARGO_\w*(?:RUNNER|LINKER|WRAPPER|RUSTC|CONFIG)\w*|GO(?:FLAGS|ROOT|TOOLDIR)"
    r"|PYTEST_\w+|npm_config_\w+|NPM_CONFIG_\w+|YARN_\w+|POSIXLY_CORRECT|HISTFILE|HOSTALIASES"
    r"|CC|CXX|LD|AR|CPP|FC|LEX|YACC|STRIP|CMAKE_\w+|MANOPT|MANROFFOPT|GROFF_\w+|ACK_\w+"
    r"|RIPGREP_CONFIG_PATH|OPENSSL_CONF|OPENSSL_\w+|SSL_\w*ENGINE\w*|PHPRC|LUA_INIT\w*|GCC_\w+"
    r"|SECONDS|RANDOM|SRANDOM|OPTIND|LINENO|HISTCMD|DIRSTACK|GROUPS|FUNCNAME|EPOCH\w+|COMP_\w+"
    r"|WGETRC|ZIPOPT|UNZIP(?:OPT)?|APT_CONFIG|PIP_(?:PYTHON|CONFIG_FILE)|GH_BROWSER|GOENV|HARNESS_\w+"
    r"|CURL_HOME|PERLDOC|BAT_\w+|SVN_\w+|HGRCPATH|UV_PYTHON"
    r"|COMPILER_PATH|TCL\w*|EMACS\w*|VIMINIT|EXINIT|GVIMINIT|MYVIMRC|DOCKER_\w+|KUBE\w+)",
    re.ASCII,
)
#: Values of such variables that run nothing.
QUIET_VALUES = frozenset({
    "", "cat", "/bin/cat", "/usr/bin/cat", "true", "/bin/true", ":", "false", "less", "more",
    "0", "1",
    "/bin/bash", "/bin/sh", "/usr/bin/bash", "bash", "sh", "gcc", "g++", "clang", "clang++",
    "cc", "c++",
    "error", "ignore", "default", "always", "-R", "-FRX", "--max-old-space-size=4096",
    "--max-old-space-size=8192", "--max_old_space_size=4096",
})  # fmt: skip
QUIET_VARIABLES = re.compile(
    r"GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)|GIT_TERMINAL_PROMPT|GIT_OPTIONAL_LOCKS"
)
#: A function must not redefine these names, on which the guard relies.
RELIED_ON = frozenset({
    *LISTERS, *FILTERS, *NUMBER_PRINTERS, *LAUNCHERS, *RUNNING_OPTIONS, *WRITERS, *SHELLS,
    *INTERPRETERS, *DECLARATIONS, "sed", "awk", "perl", "python", "python3", "make", "read",
    "printf",
    "test", "set", "eval", "trap", "source", "unset", "mapfile", "cd", "shift", "echo",
})  # fmt: skip
