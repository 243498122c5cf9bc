"""Programs by what they do with code that is not theirs, as data beside ``programs.py``.  Pure.

``plain_name`` removes the version from a name, so that one entry covers all of them.
"""

from __future__ import annotations

import posixpath
import re

from handrail.policy.programs import CODE_OPTIONS, SHELLS

#: ``python3.11``, ``perl5.36``, ``clang-15``, ``node20``, ``python3.11-dbg``.
_VERSION = re.compile(r"(?<=[a-z])[-_.]?[0-9][0-9.]*(-?dbg|d|m|t|w)?$")

#: Shells beyond those whose scripts are read.
FURTHER_SHELLS = frozenset({"cmd", "pwsh", "powershell", "xonsh", "elvish", "nu", "yash", "rksh"})
#: Shells that read no file of the user's before a script, unless they are login shells.
QUIET_SHELLS = frozenset({"bash", "sh", "dash", "ksh", "mksh", "ash", "rbash"})
#: Interpreters: the options whose value is the next word, those with the program's text left out.
INTERPRETERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(CODE_OPTIONS, frozenset[str]()),
    **dict.fromkeys(("python", "pypy", "py", "pythonw"), frozenset({"-W", "-X"})),
    **dict.fromkeys(("node", "nodejs"), frozenset({"-r", "--require", "--import", "--loader"})),
    "perl": frozenset({"-I"}),
    "java": frozenset({"-cp", "-classpath", "--class-path", "-p", "--module-path"}),
    "ruby": frozenset({"-I", "-r"}),
    "php": frozenset({"-c", "-d"}),
    **dict.fromkeys(("lua", "luajit"), frozenset({"-l"})),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk", "original-awk"), frozenset({"-F", "-v"})),
    **dict.fromkeys(
        (
            "julia", "r", "rscript", "osascript", "guile", "racket", "sbcl", "clisp", "ghci",
            "runghc", "runhaskell", "scala", "groovy", "jshell", "irb", "ipython", "iex",
            "elixir", "erl", "octave", "gnuplot", "tclsh", "wish", "expect", "ts-node", "tsx",
            "swift", "m", "dc", "sqlite", "psql", "mysql", "mono", "swipl", "matlab", "kotlin",
            "pry", "ptpython", "bpython", "esno", "zx", "coffee", "d", "qjs", "js", "rhino",
            "mongo", "mongosh", "duckdb", "osqueryi", "sqlplus", "isql", "cqlsh", "cling", "root",
            "cscript", "wscript", "spark-shell", "pyspark", "hy", "janet", "fennel", "hive",
        ),
        frozenset[str](),
    ),
}  # fmt: skip
#: Programs that run code from their working directory, or from files they are given: settings of a
#: repository, build files, tests, plugins.
_FINDS_CODE = frozenset({
    # versions and hooks
    "git", "hg", "svn", "jj", "bzr", "gh", "glab", "pre-commit", "lefthook", "direnv", "mise",
    "asdf", "git-lfs", "tig", "lazygit", "darcs", "fossil", "husky", "lint-staged", "commitlint",
    "semantic-release",
    # building
    "make", "gmake", "bmake", "ninja", "cmake", "ctest", "meson", "scons", "waf", "bazel", "buck",
    "just", "task", "rake", "ant", "mvn", "mvnw", "gradle", "gradlew", "sbt", "lein", "autoreconf",
    "configure", "nix", "nix-build", "nix-shell", "guix", "rpmbuild", "dpkg-buildpackage",
    "debuild", "makepkg", "abuild", "autoconf", "automake", "aclocal", "remake", "dmake", "ccmake",
    "cpack", "qmake", "xmake", "premake", "tup", "redo", "mage", "earthly", "pants", "plz", "mill",
    "latexmk", "xcodebuild", "fastlane", "pod", "brew", "goreleaser", "act", "doit", "buildout",
    # languages
    "npm", "npx", "pnpm", "pnpx", "yarn", "bun", "bunx", "deno", "corepack", "grunt", "gulp",
    "webpack", "vite", "rollup", "eslint", "prettier", "tsc", "jest", "vitest", "mocha", "ava",
    "playwright", "cargo", "rustup", "rustc", "go", "dotnet", "msbuild", "composer", "phpunit",
    "bundle", "bundler", "gem", "rspec", "rails", "mix", "rebar", "stack", "cabal", "swiftc",
    "pip", "pipx", "pipenv", "poetry", "pdm", "uv", "uvx", "hatch", "flit", "conda", "mamba",
    "tox", "nox", "pytest", "py.test", "coverage", "mypy", "pylint", "flake", "sphinx-build",
    "jupyter", "invoke", "inv", "fab", "django-admin", "manage.py", "setup.py", "easy_install",
    "nosetests", "trial", "behave", "robot", "locust", "mkdocs", "flask", "celery", "gunicorn",
    "uvicorn", "hypercorn", "alembic", "scrapy", "airflow", "dbt", "dvc", "streamlit", "snakemake",
    "cookiecutter", "copier", "maturin", "zig", "dart", "flutter", "dune", "lake", "idris", "spago",
    "clj", "clojure", "bb", "shadow-cljs", "kotlin", "kotlinc", "scala-cli", "escript", "ocaml",
    "turbo", "nx", "lerna", "node-gyp", "babel", "parcel", "next", "nuxt", "astro", "ng", "nest",
    "expo", "storybook", "stylelint", "cypress", "wdio", "karma", "jasmine", "tap", "c8", "nyc",
    "tsup", "nodemon", "pm", "release-it", "changeset", "rubocop", "cucumber", "jekyll", "puma",
    "foreman", "phpstan", "psalm", "behat", "artisan", "prove", "bats", "shellspec", "wasm-pack",
    "trunk", "cross", "nextflow", "watchexec", "overmind", "honcho", "supervisord",
    # machines
    "docker", "docker-compose", "podman", "vagrant", "packer", "terraform", "tofu", "pulumi",
    "ansible", "ansible-playbook", "helm", "helmfile", "skaffold", "serverless",
    "tilt", "buildah", "cdk", "sam", "terragrunt",
    # editors and debuggers
    "vim", "vi", "nvim", "emacs", "gdb", "lldb", "screen", "tmux",
})  # fmt: skip
#: Builtins, not looked up in PATH, that do not change the meaning of other names.
BUILTINS = frozenset({
    "!", "[", ":", "bg", "break", "builtin", "caller", "cd", "command", "continue", "dirs",
    "disown", "echo", "exec", "exit", "false", "fg", "getopts", "help", "jobs", "kill", "let",
    "logout", "popd", "printf", "pushd", "pwd", "return", "shift", "test", "time", "times", "true",
    "type", "ulimit", "umask", "wait",
})  # fmt: skip
CHANGES_DIRECTORY = frozenset({"cd", "pushd", "popd"})
#: After these a name may mean another program, or the program may get other variables.
CHANGES_LOOKUP = frozenset({
    ".", "alias", "bind", "complete", "declare", "enable", "eval", "export", "hash", "local",
    "mapfile", "read", "readarray", "readonly", "set", "shopt", "source", "trap", "typeset",
    "unalias", "unset",
})  # fmt: skip
#: Variables that hold code, or where code is loaded from, for every program or for many.
CODE_VARIABLES = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "GIT_DIR", "GIT_EXEC_PATH",
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_TEMPLATE_DIR", "PYTHONPATH", "PYTHONHOME",
    "PYTHONSTARTUP", "NODE_PATH", "PERL5LIB", "RUBYLIB", "MAKEFILES", "CARGO_HOME", "GOPATH",
    "GCONV_PATH", "CLASSPATH", "KUBECONFIG", "DOCKER_CONFIG",
)  # fmt: skip
#: Variables whose value is a command or options, in which files may be named.
COMMAND_VARIABLES = (
    "NODE_OPTIONS", "RUBYOPT", "PERL5OPT", "JAVA_TOOL_OPTIONS", "MAKEFLAGS", "GIT_SSH",
    "GIT_SSH_COMMAND", "GIT_PROXY_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS",
    "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "PAGER", "MANPAGER",
    "EDITOR", "VISUAL", "BROWSER", "LESSOPEN", "LESSCLOSE", "RSYNC_RSH", "CVS_RSH",
)  # fmt: skip


def plain_name(program: str) -> str:
    """The name of a program without its directory, its version and its case."""
    name = posixpath.basename(program.replace("\\", "/")).lower().removesuffix(".exe")
    return _VERSION.sub("", name)


def is_shell(program: str) -> bool:
    """True if this is a shell by its name."""
    return plain_name(program) in SHELLS | FURTHER_SHELLS


def runs_what_it_finds(program: str) -> bool:
    """True if this program is known to run code from its working directory or its files."""
    name = plain_name(program)
    return name in _FINDS_CODE or name in INTERPRETERS or is_shell(name)
