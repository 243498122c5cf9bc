"""``python -m handrail`` and the ``handrail`` command."""

import os
import sys


def main() -> None:
    """Hand over to the command line."""
    _fill_standard_descriptors()
    if sys.argv[1:2] in (["run"], ["sandbox"]):  # whose start is what people wait for
        from handrail import compiled

        compiled.use()
    from handrail.cli.app import program

    sys.exit(program())


def _fill_standard_descriptors() -> None:
    """A missing 0, 1 or 2 would be taken by the next file, and be mistaken for the terminal."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        if fd == 1 and sys.stdout is None:
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (for as long as we run)
        if fd == 2 and sys.stderr is None:
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
