"""The compiled modules of a start in one file: made, used, and left aside when they are stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import handrail

SCRIPT = """
import sys
from importlib.util import cache_from_source
sys.path.insert(0, {place!r})
from handrail import start_bundle
start_bundle.use()
import handrail.sandbox.profile as profile
from handrail.sandbox.light_dataclass import Choice
start_bundle.make()
assert profile.__cached__ == cache_from_source(profile.__file__)
print(type(profile.__spec__.loader).__name__, profile.__file__, profile.workspace_write.__doc__[:4])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the package, which a start may write to."""
    source = Path(handrail.__file__).parent
    shutil.copytree(source, tmp_path / "handrail", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def start(place: Path, **more: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    argv = [sys.executable, "-I", "-S", "-c", SCRIPT.format(place=str(place))]
    # -I ignores the variables of Python: byte code is written.
    done = subprocess.run(argv, env=env | more, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_made_by_one_start_and_used_by_the_next(place: Path) -> None:
    assert start(place)[0] == "SourceFileLoader"
    bundle = place / "handrail/__pycache__" / f"start.{sys.implementation.cache_tag}"
    assert bundle.stat().st_mode & 0o777 == 0o644
    loader, file, text = start(place)
    assert loader == "_Loader"
    assert file == str(place / "handrail/sandbox/profile.py")
    assert text == "Read"
    assert [path.name for path in bundle.parent.glob("start.*")] == [bundle.name]


def test_changed_source_or_broken_file_is_imported_as_usual_and_made_anew(place: Path) -> None:
    start(place)
    source = place / "handrail/sandbox/profile.py"
    source.write_text(source.read_text().replace('"""Read everything;', '"""NEW everything;'))
    assert start(place)[::2] == ["SourceFileLoader", "NEW"]
    assert start(place)[::2] == ["_Loader", "NEW"]
    bundle = place / "handrail/__pycache__" / f"start.{sys.implementation.cache_tag}"
    whole = bundle.read_bytes()
    for broken in (b"", whole[:1000], whole[:-1]):
        bundle.write_bytes(broken)
        assert start(place)[0] == "SourceFileLoader"
    assert start(place)[0] == "_Loader"


def test_copy_of_a_package_is_imported_from_its_own_place(place: Path, tmp_path: Path) -> None:
    start(place)
    copy = tmp_path / "copy"
    shutil.copytree(place / "handrail", copy / "handrail")  # with its times, as `cp -a`
    own = str(copy / "handrail/sandbox/profile.py")
    assert start(copy)[:2] == ["SourceFileLoader", own]
    assert start(copy)[:2] == ["_Loader", own]


def test_directory_that_cannot_be_written_is_left_alone(place: Path) -> None:
    folder = place / "handrail/__pycache__"
    folder.write_text("")  # root writes into every directory
    assert start(place)[0] == "SourceFileLoader"
    assert folder.read_text() == ""


def test_file_of_a_server_has_other_packages_and_belongs_to_one_path(place: Path) -> None:
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "sys.path.extend(sys.argv[1:])\n"
        "from handrail import start_bundle\n"
        "start_bundle.use(start_bundle.SERVER)\n"
        "import base64, handrail.sandbox.profile as profile\n"
        "start_bundle.make()\n"
        "print(*(type(one.__spec__.loader).__name__ for one in (base64, profile)))\n"
    )

    def start(*path: str) -> list[str]:
        argv = [sys.executable, "-I", "-S", "-c", script, *path]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    assert start() == ["SourceFileLoader"] * 2
    assert start() == ["_Loader"] * 2
    assert start("/nowhere") == ["SourceFileLoader"] * 2
    assert start("/nowhere") == ["_Loader"] * 2


def test_methods_of_dataclasses_are_compiled_once(place: Path) -> None:
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "from handrail import start_bundle\n"
        "start_bundle.use(start_bundle.SERVER)\n"
        "import builtins, dataclasses\n"
        "compiled, real = [], compile\n"
        "builtins.compile = lambda *words: compiled.append(words[0]) or real(*words)\n"
        "@dataclasses.dataclass(frozen=True, slots=True)\n"
        "class Point:\n"
        "    'A point.'\n"
        "    x: int\n"
        "    y: int = 2\n"
        "print(len(compiled), Point(1), Point(1) == Point(1, 2), hash(Point(1)) != 0)\n"
        "start_bundle.make()\n"
    )

    def start() -> list[str]:
        argv = [sys.executable, "-I", "-S", "-c", script]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    first, *said = start()
    assert int(first) > 0
    assert said == ["Point(x=1,", "y=2)", "True", "True"]
    assert start() == ["0", *said]
