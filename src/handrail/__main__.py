"""``python -m handrail`` and the ``handrail`` command.

Nothing but ``sys`` and ``os`` is imported before the safe path: ``python -m`` searches the current
directory first, and a command could have left a module of any name there.
"""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C before there is a command to take it ends it quietly."""
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(130)  # INTERRUPTED of exit_codes, which may be what could not be imported


def _main() -> None:
    _use_safe_path()
    _fill_standard_descriptors()
    if sys.argv[1:2] in (["run"], ["sandbox"], ["serve"]):
        import gc

        from handrail import start_bundle

        gc.disable()  # nothing that is imported before the command or server starts is garbage
        serves = sys.argv[1] == "serve"
        start_bundle.use(start_bundle.SERVER if serves else start_bundle.COMMAND)
        if sys.argv[1] != "sandbox":  # which writes none
            start_bundle.note()
    from handrail import own_code
    from handrail.cli.app import program

    own_code.own_program(sys.argv[0])
    sys.exit(program())


def _use_safe_path() -> None:
    """Remove the current directory, and PYTHONPATH entries below it, from the module path.

    By now ``site`` has made every entry absolute.  A directory that we are installed in is searched
    also when it is the current one.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        here = os.stat(os.getcwd())  # by name: a command may have closed the directory itself
        dropped = {os.path.abspath(entry) for entry in given if not entry.startswith("/")}
    except OSError:  # it is gone: nothing can be relative to it
        here, dropped = None, set()
    prefixes = (sys.prefix, sys.base_prefix)
    libraries = tuple(f"{prefix}/{name}/" for prefix in prefixes for name in ("lib", "lib64"))

    def is_safe(entry: str) -> bool:
        if entry.startswith(libraries):
            return True
        if not entry.startswith("/") or entry in dropped:
            return False
        try:
            return here is None or not os.path.samestat(os.stat(entry), here)
        except OSError:
            return True  # missing, or unreadable for us

    sys.path[:] = filter(is_safe, sys.path)


def _fill_standard_descriptors() -> None:
    """Open missing fds 0, 1 and 2: the next opened file would be taken for one of them."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        if fd == 0 and sys.stdin is None:
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 (for as long as we run)
        if fd == 1 and sys.stdout is None:
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        if fd == 2 and sys.stderr is None:
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
