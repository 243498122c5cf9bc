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
print(type(profile.__spec__.loader).__name__, profile.__file__, profile.AT_ROOT.split()[0])
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
    assert text == "a"
    assert [path.name for path in bundle.parent.glob("start.*")] == [bundle.name]


def test_changed_source_or_broken_file_is_imported_as_usual_and_made_anew(place: Path) -> None:
    start(place)
    source = place / "handrail/sandbox/profile.py"
    source.write_text(source.read_text().replace('"a workspace at', '"NEW workspace at'))
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
        "builtins.compile = real  # for what is imported to write\n"
        "start_bundle.make()\n"
    )

    def start() -> list[str]:
        argv = [sys.executable, "-I", "-S", "-c", script]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    first, *said = start()
    assert int(first) > 0
    assert said == ["Point(x=1,", "y=2)", "True", "True"]
    assert start() == ["0", *said]


def test_regular_expressions_are_compiled_once(place: Path) -> None:
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "from handrail import start_bundle\n"
        "start_bundle.use(start_bundle.SERVER)\n"
        "import re\n"
        "parsed, real = [], re._compiler._parser.parse\n"
        "re._compiler._parser.parse = lambda *words: parsed.append(words) or real(*words)\n"
        "text = re.compile('(?P<name>[a-z]+)=(x)?', re.IGNORECASE)\n"
        "raw = re.compile(b'(a|b){2}')\n"
        "found = text.fullmatch('KEY=')\n"
        "assert found.groupdict() == {'name': 'KEY'} and text.pattern[0] == '('\n"
        "assert text.flags == re.IGNORECASE | re.UNICODE and text.groups == 2\n"
        "assert raw.fullmatch(b'ab') and not raw.fullmatch(b'abc')\n"
        "start_bundle.make()\n"
        "print(len(parsed))\n"
    )

    def start() -> str:
        argv = [sys.executable, "-I", "-S", "-c", script]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert start() == "2\n"
    assert start() == "0\n"


@pytest.mark.parametrize("threads", [0, 1])
def test_module_is_loaded_as_the_import_system_does_it(place: Path, threads: int) -> None:
    package = place / "handrail/probe"
    package.mkdir()
    (package / "__init__.py").write_text("from . import one\nfrom .one import other\n")
    (package / "one.py").write_text(
        "import handrail.probe.two as other\nimport handrail.sandbox.profile\n"
    )
    (package / "two.py").write_text("import handrail.probe as above\n")
    (package / "broken.py").write_text("import sys\nassert len(sys.argv) == 1\n")
    script = (
        "import sys, _thread\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "from handrail import start_bundle\n"
        "start_bundle.use()\n"
        "lock = _thread.allocate_lock(); lock.acquire()\n"
        f"for _ in range({threads}): _thread.start_new_thread(lock.acquire, ())\n"
        "import handrail, handrail.probe.one as one, handrail.probe.two as two\n"
        "assert one.other is two and two.above is handrail.probe and two.above.one is one\n"
        "try:\n"
        "    import handrail.probe.broken\n"
        "except AssertionError:\n"
        "    assert 'handrail.probe.broken' not in sys.modules and len(sys.argv) > 1\n"
        "start_bundle.make()\n"
        "names = '__name__ __package__ __file__ __cached__ __path__ __doc__'.split()\n"
        "for module in (handrail.probe, one, handrail.sandbox.profile):\n"
        "    assert module.__loader__ is module.__spec__.loader\n"
        "    print([getattr(module, name, None) for name in names], module.__spec__.parent,\n"
        "        module.__spec__.submodule_search_locations, module.__spec__._initializing)\n"
        "print(type(two.__loader__).__name__, file=sys.stderr)\n"
    )

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", "-S", "-c", script, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True)

    usual, ours = start(), start("break")
    assert (usual.stderr, ours.stderr) == ("SourceFileLoader\n", "_Loader\n")
    assert ours.stdout == usual.stdout


#: Functions of all kinds that are large enough to be read later; ``used`` is called in each start.
LATER = """
import contextlib, weakref

def used(a):
    return [a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9]

def plain(a, /, b, *more, key="k", **rest):
    "Says it."
    return [a, b, more, key, rest, "{one}", "{two}", "{three}", [a for a in more], "{four}"]

async def waits(a):
    "Waits."
    return [a, "{one}", "{two}", "{three}", "{four}", [a, a], [a, a, a], (a, a), a]

@contextlib.contextmanager
def context(a):
    yield [a, "{one}", "{two}", "{three}", "{four}", [a, a], [a, a, a], (a, a), a]

def wrapped(function):
    return lambda *words: function(*words)

@wrapped
def hidden(a):
    return [a, "{one}", "{two}", "{three}", "{four}", [a, a], [a, a, a], (a, a), a]

class Thing:
    def __init__(self, a):
        super().__init__()
        self.a, self.b, self.c, self.d = [a, "{one}"], "{two}", "{three}", "{four}"

    def __private(self, a=3):
        return [a, self.a, "{one}", "{two}", "{three}", "{four}", [a, a], (a, a), a]

    def method(self, a=1, *, b=2):
        return [self.__private(), a, b, "{one}", "{two}", "{three}", "{four}", [a, a], (a, a)]

    @property
    def value(self):
        return [self.a, "{one}", "{two}", "{three}", "{four}", [1, 1], [2, 2, 2], (3, 3), 4]

    @staticmethod
    def alone(a):
        return [a, "{one}", "{two}", "{three}", "{four}", [a, a], [a, a, a], (a, a), a]

    @classmethod
    def of(cls, a):
        return [cls.__name__, a, "{one}", "{two}", "{three}", "{four}", [a, a], (a, a), a]

def ended(_):
    print("ended", "{one}", "{two}", "{three}", "{four}", [1, 2], [1, 2, 3], (1, 2), 1)

class Left: pass
left = Left()
gone = weakref.ref(left, ended)
"""


def test_function_that_no_start_calls_gets_its_code_with_its_first_call(place: Path) -> None:
    words = {name: f"{name} of the words that make it large" * 4 for name in ("one", "two")}
    words |= {name: f"{name} of the words that make it large" * 4 for name in ("three", "four")}
    text = LATER
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    (place / "handrail/probe.py").write_text(text)
    script = (
        "import asyncio, inspect, sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "from handrail import start_bundle\n"
        "start_bundle.use(start_bundle.SERVER)\n"
        "start_bundle.note()\n"
        "import handrail.probe as probe, handrail.sandbox.profile\n"
        "probe.used(1)\n"
        "start_bundle.make()\n"
        "size = lambda one: len(one.__code__.co_code)\n"
        "before = size(probe.used), size(probe.plain), size(probe.Thing.method)\n"
        "print(*map(inspect.signature, (probe.plain, probe.waits, probe.Thing.method)))\n"
        "print(probe.plain.__doc__, inspect.iscoroutinefunction(probe.waits))\n"
        "thing = probe.Thing(1)\n"
        "for _ in range(2):\n"
        "    print(probe.used(5), probe.plain(1, 2, 3, key=4, more=5))\n"
        "    print(asyncio.run(probe.waits(6)))\n"
        "    with probe.context(7) as made: print(made, probe.hidden(8))\n"
        "    print(thing.method(b=5), thing.value, thing.alone(9), probe.Thing.of(10))\n"
        "try: probe.plain()\n"
        "except TypeError as error: print(error)\n"
        "after = size(probe.used), size(probe.plain), size(probe.Thing.method)\n"
        "print([a == b for a, b in zip(before, after)], file=sys.stderr)\n"
    )

    def start() -> tuple[str, str]:
        argv = [sys.executable, "-I", "-S", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout.partition("ended")[0], done.stderr

    usual, ours = start(), start()
    assert usual[1] == "[True, True, True]\n"
    assert ours == (usual[0], "[True, False, False]\n")


NOTED = """
from __future__ import annotations

class Thing:
    'A thing.'
    size: int = 1

    def method(self, a: str, *, b: int = 2) -> tuple[str, int]:
        'Method.'
        return a, b

def pairs(a="a", b="int") -> None:
    return a, b

def around(value: int) -> int:
    'A function with another in it.'
    def inside(more: int = 3, *rest: str, **named: bool) -> int:
        'It closes over a value.'
        return value + more
    return inside

def text() -> str:
    'Returned.'
    return 'Returned.', ('return', 'str')
"""


def test_functions_of_a_command_have_neither_annotations_nor_documentation(place: Path) -> None:
    (place / "handrail/probe.py").write_text(NOTED)
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "from handrail import start_bundle\n"
        "start_bundle.use()\n"
        "import handrail.probe as probe, handrail.sandbox.profile\n"
        "start_bundle.make()\n"
        "thing, inside = probe.Thing(), probe.around(4)\n"
        "print(thing.method('x', b=5), probe.pairs(), inside(), inside(1), probe.text())\n"
        "print(probe.Thing.__annotations__, probe.Thing.__doc__)\n"
        "functions = probe.Thing.method, probe.pairs, probe.around, inside, probe.text\n"
        "print([(f.__annotations__, f.__doc__) for f in functions], file=sys.stderr)\n"
    )

    def start() -> tuple[str, str]:
        argv = [sys.executable, "-I", "-S", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    usual, ours = start(), start()
    assert "'return': 'tuple[str, int]'" in usual[1]
    assert ours == (usual[0], f"{[({}, None)] * 5}\n")


def test_what_later_starts_know_is_not_noted(place: Path) -> None:
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(place)!r})\n"
        "from handrail import start_bundle\n"
        "start_bundle.use()\n"
        "start_bundle.note()\n"
        "def again(): pass\n"
        "def once(): return b'text'\n"
        "print(start_bundle.computed(('once', 1), once), start_bundle.unnoted(once))\n"
        "again()\n"
        "start_bundle.noted()\n"
        "print(*sorted(name for file, _, name in start_bundle._called if file == '<string>'))\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["b'text' b'text'", "again"]
