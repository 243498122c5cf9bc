"""The program of the keeper under coverage.py, which -S keeps out of the real one.

The keepers of servers that are processes of their own are not counted.
"""

from __future__ import annotations

import os
import sys

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def install() -> None:
    """Have keepers that this process starts be counted, if it is counted itself."""
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        from handrail.process.keeper_client import start_keeper

        start_keeper.PROGRAM = (sys.executable, os.path.abspath(__file__))


if __name__ == "__main__":
    import atexit

    venv = os.path.dirname(os.path.dirname(sys.executable))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path += [f"{venv}/lib/{version}/site-packages", f"{HOME}/src"]
    from coverage import Coverage

    coverage = Coverage(f"{HOME}/.coverage", data_suffix=True, config_file=f"{HOME}/pyproject.toml")
    coverage.start()
    really_exit = os._exit

    def save() -> None:
        coverage.stop()
        coverage.save()

    def leave(status: int) -> None:
        save()
        really_exit(status)

    atexit.register(save)
    os._exit = leave  # type: ignore[assignment]
    from handrail.keeper.main import main

    main(sys.argv[1:])
