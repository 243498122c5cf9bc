"""Every public name is described: with units, with what is raised, and in docs/api.md."""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import re
import runpy
import subprocess
import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import handrail
from handrail.executor.base import ExecSession
from handrail.executor.files import Files

ROOT = Path(__file__).parents[2]
REFERENCE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "api_reference"))

#: Parameters that are times: a docstring that mentions one says seconds, or its class does.
TIMES = {"timeout", "wait", "idle", "grace", "request_timeout", "detach_ttl"}


def members() -> Iterator[tuple[str, Any, Any]]:
    """(name, what it is, what it belongs to) of everything public."""
    found = {name: getattr(handrail, name) for name in handrail.__all__ if name != "__version__"}
    for modules in REFERENCE["MORE"].values():
        for module, names in modules.items():
            found |= {name: getattr(import_module(module), name) for name in names}
    for name, thing in found.items():
        if name in REFERENCE["TYPES"]:
            continue
        yield name, thing, None
        if inspect.isclass(thing) and thing.__module__.startswith("handrail"):
            for member, value in REFERENCE["members_of"](thing).items():
                if not member.startswith("_") and (
                    inspect.isfunction(value) or isinstance(value, property | classmethod)
                ):
                    yield f"{name}.{member}", _with_contract(member, value), thing


def _with_contract(member: str, value: Any) -> Any:
    """What keeps a contract need not repeat what that says."""
    if not inspect.getdoc(value):
        for contract in (ExecSession, Files):
            value = vars(contract).get(member, value)
    return value


NAMES = {name: (thing, owner) for name, thing, owner in members()}


def test_each_has_a_docstring_of_its_own() -> None:
    without = [name for name, (thing, _) in NAMES.items() if not _has_own_docstring(thing)]
    assert not without


def _has_own_docstring(thing: Any) -> bool:
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and "__doc__" not in vars(thing):
        return False
    # That of a dataclass is made of its arguments.
    return bool(text.strip()) and not text.startswith(f"{getattr(thing, '__name__', '')}(")


def test_times_have_a_unit() -> None:
    without = [name for name, (thing, _) in NAMES.items() if not _has_units(name, thing)]
    assert not without, "they take times and do not say in what unit"


def _has_units(name: str, thing: Any) -> bool:
    call = thing.__func__ if isinstance(thing, classmethod) else thing
    if isinstance(call, property) or (inspect.isclass(call) and issubclass(call, BaseException)):
        return True
    try:
        taken = TIMES & set(inspect.signature(call).parameters)
    except ValueError:
        return True
    return not taken or "second" in described(name, thing)


def test_what_is_raised_is_told() -> None:
    without = [name for name, (thing, owner) in NAMES.items() if not _tells(name, thing, owner)]
    assert not without, "they do not say what they raise"


def _tells(name: str, thing: Any, owner: Any) -> bool:
    call = thing.__func__ if isinstance(thing, classmethod) else thing
    if not inspect.isfunction(call) or (owner and "Files" in owner.__name__):
        return True  # all that files raise is said once, by their class
    text = described(name, thing)
    if owner is not None and thing not in vars(handrail).values():
        text += inspect.getdoc(owner) or ""  # what holds for all of them is said once
    return "raise" in text.lower()


def described(name: str, thing: Any) -> str:
    """Its docstring, and those it points to with ``see``."""
    text = inspect.getdoc(thing) or ""
    for other, (twin, _) in NAMES.items():
        if other != name and f"``{other}``" in text:
            text += inspect.getdoc(twin) or ""
    return text


def test_the_reference_has_every_name_once() -> None:
    listed = [name for names in REFERENCE["GROUPS"].values() for name in names]
    assert sorted(listed) == sorted(set(handrail.__all__) - {"__version__"})


def test_the_reference_defines_every_type_and_error_it_names() -> None:
    page = REFERENCE["render"]()
    defined = set(re.findall(r"^### `(\w+)`", page, re.MULTILINE))
    defined |= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    code = re.findall(r"^ *```python no-run\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    code += re.findall(r"^- `(.*?)`", page, re.MULTILINE)
    named = {name for one in code for name in re.findall(r"(?:[:>|,] |\[)([A-Z]\w+)", one)}
    named |= set(re.findall(r"\b((?:[A-Z][a-z]+)+(?:Error|Failed|Busy|Unknown|Lost))\b", page))
    unknown = {
        name
        for name in named - defined
        if not any(hasattr(module, name) for module in (builtins, typing, collections.abc))
    }
    assert not unknown, "add them to TYPES or MORE of scripts/api_reference"


def test_names_are_found_lazily_and_completely() -> None:
    script = (
        "import sys, handrail; assert 'asyncio' not in sys.modules;"
        "assert not [m for m in sys.modules if m.startswith('handrail.') and m != "
        "'handrail.version'], sys.modules;"
        "[getattr(handrail, name) for name in dir(handrail)]; print(len(dir(handrail)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30
    )
    assert int(done.stdout) == len(handrail.__all__)
    with pytest.raises(handrail.UsageError, match="has no 'Worksapce'; did you mean 'Workspace'"):
        _ = handrail.Worksapce  # type: ignore[attr-defined]
    assert not hasattr(handrail, "nothing")
