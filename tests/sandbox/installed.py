"""A handrail that is installed in a virtual environment of the test's own, and what attacks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import handrail

PACKAGE = Path(handrail.__file__).parent
LIBRARIES = sysconfig.get_path("purelib")
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable

#: Modules that programs try to import and do without.
OPTIONAL = "brotli brotlicffi curio h2 orjson pygments rich sitecustomize sniffio socksio trio"

#: Leaves a module of every name in the current directory, and calls what has us import something.
PLANT = f"""
import socket, sys
mark = sys.argv[1]
text = "open(%r, 'a').write(__name__ + ' ')\\nraise ImportError('planted')\\n" % mark
for name in [*sys.stdlib_module_names, *{OPTIONAL.split()!r}]:
    if name not in ("os", "sys", "builtins"):
        open(name + ".py", "w").write(text)

def attempt(call):
    try:
        call()
    except OSError as error:
        print(type(error).__name__)

attempt(lambda: socket.socket(socket.AF_UNIX).connect("/nowhere"))
attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt(lambda: socket.create_connection(("127.0.0.1", 9), 1))
attempt(lambda: open("/etc/x-y", "w"))
print("planted")
"""

#: Adds a line to every module below a directory.
REWRITE = """
import os, socket, sys
mark = sys.argv[2]
rewritten = 0
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        try:
            if name.endswith(".py"):
                open(os.path.join(directory, name), "a").write("\\nopen(%r, 'a')\\n" % mark)
                rewritten += 1
        except OSError:
            pass
try:
    socket.socket(socket.AF_UNIX).connect("/nowhere")
except OSError:
    pass
print("rewritten:", rewritten)
"""


class Installed:
    """A virtual environment with a copy of this package."""

    def __init__(self, where: Path, *, package: Path | None = None) -> None:
        self.where = where
        argv = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(where)]
        subprocess.run(argv, check=True, timeout=50)
        self.site = where / "lib" / VERSION / "site-packages"
        self.package = package or self.site / "handrail"
        copy = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, self.package, ignore=copy)
        (self.site / "requirements.pth").write_text(LIBRARIES + "\n")
        self.python = str(where / "bin" / "python")
        self.command = str(where / "bin" / "handrail")
        text = (
            f"#!{self.python}\nimport sys\nfrom handrail.__main__ import main\nsys.exit(main())\n"
        )
        Path(self.command).write_text(text)
        os.chmod(self.command, 0o755)


def run(*argv: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with its output together."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        argv,
        cwd=cwd,
        env={**env, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=50,
    )
