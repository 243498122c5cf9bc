"""Where our own code lies, and what is not searched any more."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import handrail
from handrail import own_code
from handrail.sandbox import doctor_checks

PACKAGE = Path(handrail.__file__).parent


def imports_at_the_start(module: str) -> set[str]:
    """What a module imports when it is imported itself."""
    found: set[str] = set()
    for statement in ast.parse((PACKAGE / module).read_text()).body:
        if isinstance(statement, ast.Import):
            found.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            found.add(str(statement.module))
    return found


def test_nothing_is_imported_before_the_safe_path() -> None:
    assert imports_at_the_start("__init__.py") == set()
    assert imports_at_the_start("__main__.py") == {"os", "sys"}
    functions = {
        statement.name: statement.body
        for statement in ast.parse((PACKAGE / "__main__.py").read_text()).body
        if isinstance(statement, ast.FunctionDef)
    }
    (whole,) = functions["main"][1:]  # after the words about it
    assert isinstance(whole, ast.Try)
    assert list(map(ast.unparse, whole.body)) == ["_main()"]
    assert ast.unparse(functions["_main"][0]) == "_use_safe_path()"


def test_the_package_the_interpreter_and_the_libraries_are_ours() -> None:
    found = {os.fsdecode(name): kind for name, _, kind in own_code.places()}
    assert found[str(PACKAGE)] == own_code.CODE
    assert found[os.path.dirname(os.__file__)] == own_code.CODE
    assert {sys.prefix, sys.base_prefix, os.path.dirname(sys.executable)} <= found.keys()
    import msgspec

    assert found[str(Path(msgspec.__file__).parents[1])] == own_code.CODE
    depths = [name.count(b"/") for name, _, _ in own_code.places()]
    assert depths == sorted(depths)  # a link is looked at when its directory is known


def alone(script: str, *words: str, cwd: Path, **variables: str) -> list[str]:
    """Run a script in an interpreter of its own; the words it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    argv = [sys.executable, "-P", "-c", script, *words]
    env.update(variables)
    done = subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


SAFE_PATH = """
import sys
from handrail import __main__
sys.path.append("")
__main__._use_safe_path()
print(*sys.path)
"""


def test_the_safe_path_has_nothing_that_depends_on_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "alias").symlink_to("here")
    given = f".:lib::{tmp_path}/other:{tmp_path}/alias:{tmp_path}/here"
    left = alone(SAFE_PATH, cwd=tmp_path / "here", PYTHONPATH=given)
    assert [entry for entry in left if entry.startswith(str(tmp_path))] == [f"{tmp_path}/other"]
    assert os.path.dirname(os.__file__) in left


def test_the_safe_path_is_there_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    script = f"import os; os.rmdir({str(tmp_path / 'here')!r})\n{SAFE_PATH}"
    (tmp_path / "here").mkdir()
    assert os.path.dirname(os.__file__) in alone(script, cwd=tmp_path / "here")


AVOID = """
import os, sys
from handrail import own_code
root = sys.argv[1]
sys.path[:0] = [root, root + "/kept", root + "/later", os.path.dirname(root)]
own_code.own_program("handrail")
own_code.avoid([root.encode()], [root.encode() + b"/kept"])
near = [entry for entry in sys.path if root.startswith(entry) or entry.startswith(root)]
print(*(os.path.relpath(entry, root) for entry in near))
os.environ["PYTHONPATH"] = os.pathsep.join([root, root + "/kept", "lib", ""])
print(os.path.relpath(own_code.environment()["PYTHONPATH"], root))
"""


def test_a_program_of_ours_drops_what_a_command_can_write(tmp_path: Path) -> None:
    assert alone(AVOID, str(tmp_path / "ws"), cwd=tmp_path) == ["kept", "kept"]


LIBRARIES = """
import os, sys
from handrail import own_code
root, *names = sys.argv[1:]
for name in names:
    os.environ[name] = f"{root}/{name}:/usr/lib/{name}"
os.environ["LD_PRELOAD"] += " here.so"
known = {os.fsdecode(place) for place, _, _ in own_code.places()}
print(*(name for name in names if f"{root}/{name}" in known))
own_code.avoid([root.encode()], [])
print(*(own_code.environment()[name] for name in names))
"""
VARIABLES = ("LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "OPENSSL_CONF", "OPENSSL_MODULES")


def test_libraries_that_variables_name_are_ours(tmp_path: Path) -> None:
    """They are read-only inside, or the next program of ours does not load them."""
    names = (*VARIABLES, "OPENSSL_ENGINES", "LD_PRELOAD")
    said = alone(LIBRARIES, str(tmp_path), *names, cwd=tmp_path)
    assert said[: len(names)] == list(names)
    expected = [f"/usr/lib/{name}" for name in names]
    assert said[len(names) :] == [*expected[:-1], "/usr/lib/LD_PRELOAD:here.so"]


PROGRAM = """
import os, sys
from handrail import own_code
root = sys.argv[1]
os.environ["PATH"] = f"{root}/bin:bin::/usr/bin:/bin"
print(own_code.find_program("ssh"))
own_code.avoid([root.encode()], [])
print(own_code.find_program("ssh"), own_code.find_program("sh"))
"""


def test_a_program_that_a_command_can_write_is_not_found(tmp_path: Path) -> None:
    """``ssh`` is started outside of every sandbox, and PATH may begin in the workspace."""
    planted = tmp_path / "bin" / "ssh"
    planted.parent.mkdir()
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o755)
    first, then, plain = alone(PROGRAM, str(tmp_path), cwd=tmp_path)
    assert first == str(planted)
    assert then != str(planted)
    assert plain == "/usr/bin/sh"


#: Namespace packages have a part in every directory of the search path.
NAMESPACE = """
import sys
from pathlib import Path
root, outside = sys.argv[1:]
sys.path[:0] = [root, outside]
for place, text in ((root, "found = 'root'"), (outside, "found = 'outside'")):
    Path(place, "parts").mkdir(parents=True)
    Path(place, "parts", "part.py").write_text(text)
    Path(place, "single.py").write_text(text)
import parts
from handrail import own_code
own_code.avoid([root.encode()], [])
ours = {"__name__": "handrail.something"}
exec("from parts.part import found", ours)
del sys.modules["parts.part"]
exec("from single import found as single", ours)
del sys.modules["single"]
import single
from parts.part import found
print(ours["found"], ours["single"], single.found, found)
"""


def test_in_an_embedding_program_only_our_imports_are_led_elsewhere(tmp_path: Path) -> None:
    said = alone(NAMESPACE, str(tmp_path / "root"), str(tmp_path / "outside"), cwd=tmp_path)
    assert said == ["outside", "outside", "root", "root"]


def test_files_with_a_second_name_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "handrail"
    place.mkdir()
    (place / "single.py").touch()
    (place / "double.py").touch()
    name = os.fsencode(place)
    monkeypatch.setattr(own_code, "_places", ((name, name, own_code.CODE),))
    assert doctor_checks._linked_files() == []
    (tmp_path / "elsewhere.py").hardlink_to(place / "double.py")
    assert doctor_checks._linked_files() == [str(place / "double.py")]


#: Programs of ours, and a module that each imports.
HELPERS = {
    "keeper/__main__.py": "keeper/main.py",
    "sandbox/landlock/program.py": "sandbox/landlock/ruleset.py",
    "sandbox/syscalls/self_test.py": "keeper/fork.py",
    "sandboxed_files/program.py": "sandboxed_files/service.py",
}
FUTURE = "from __future__ import annotations\n"


@pytest.mark.parametrize("program", HELPERS)
def test_helpers_do_not_search_the_directory_beside_the_package(
    program: str, tmp_path: Path
) -> None:
    copy = tmp_path / "handrail"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "planted.py").write_text("print('planted')")
    module = copy / HELPERS[program]
    module.write_text(
        module.read_text().replace(FUTURE, FUTURE + "print('begins')\nimport planted\n")
    )
    (tmp_path / "request").write_text('{"lasting": true}')
    with open(tmp_path / "request") as request:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-u", str(copy / program), "0"],
            cwd=tmp_path,
            stdin=request,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.stdout == "begins\n"
    assert "planted" in done.stderr
