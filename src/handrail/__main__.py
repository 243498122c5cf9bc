"""``python -m handrail`` and the ``handrail`` command."""

import sys


def main() -> None:
    """Hand over to the command line."""
    from handrail.cli.app import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
