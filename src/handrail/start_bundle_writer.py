"""Writes the file of ``start_bundle.py``, at the end of a start that found none.

The code of a function that was not called in that start is put behind those of the modules.  In its
module the function has the code of ``_stub``, with its name, arguments, documentation and kind.
In the file of a command no function has its annotations and documentation, for nothing looks at
them there: an eighth of what is to be read.
"""

from __future__ import annotations

import dis
import marshal
import os
import sys
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from keyword import iskeyword

from handrail import start_bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

#: Used by a command with pipes or with a terminal, which this start had not.
_OTHERS = ("handrail.process.foreground.stream_copies", "handrail.process.foreground.pty_relay")
#: Code that is smaller is read sooner than what would be in its place.
_SMALL = 400
#: Of ``co_flags``: code of a function, *args, **kwargs, and the kinds of functions.
_OPTIMIZED, _ARGS, _KWARGS, _COROUTINE = 0x1, 0x4, 0x8, 0x80
_GENERATORS = 0x20 | 0x100 | 0x200
_DOCUMENTED = 0x4000000  # since Python 3.14; before, the first constant is always for that
#: Of what a function is made with.
_ANNOTATED, _CLOSES_OVER = 0x4, 0x8
#: They look at the frame of their caller, and there is one more between for the first call.
_FRAMES = {"_getframe", "_getframemodulename", "_caller", "currentframe", "warn"}
#: Called when modules are gone; looked at by the interpreter.
_KEPT = {"__del__", "__annotate__"}


def write(
    kind: str,
    made_for: tuple[Any, ...],
    parts: tuple[Any, ...],
    called: set[tuple[str, int, str]],
) -> None:
    """Write the modules that are loaded; a failure is ignored.

    ``parts``: what else the file has.  ``called``: the functions that the next start calls too, by
    file, line and name.
    """
    place = start_bundle.place(kind)
    if not os.access(os.path.dirname(place), os.W_OK):
        return  # another user has installed us; each start would try in vain
    temporary = f"{place}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        others = {name for name in _OTHERS if name not in sys.modules}
        for name in others if kind == start_bundle.COMMAND else ():
            import_module(name)
        entries, codes = _loaded(kind, called, others)
        table = marshal.dumps((made_for, entries, _libraries(), *parts, len(codes)))
        # Never writable for others, whatever the umask is.
        with open(os.open(temporary, flags, 0o644), "wb") as file:
            file.write(len(table).to_bytes(start_bundle.NUMBER, "big") + table + codes)
        os.replace(temporary, place)
    except (OSError, ImportError, AttributeError, ValueError):
        pass  # no room, no permission, or modules that were loaded in another way


def _loaded(
    kind: str, called: set[tuple[str, int, str]], others: set[str]
) -> tuple[dict[str, start_bundle.Entry], bytes]:
    """``others``: of these modules it is not known which functions are called."""
    entries: dict[str, start_bundle.Entry] = {}
    codes = bytearray()
    for name, module in list(sys.modules.items()):
        ours = name.startswith("handrail.") or name == "__future__"
        spec: Any = getattr(module, "__spec__", None)
        if kind == start_bundle.SERVER:  # but no C modules, and none under another name
            wanted = isinstance(getattr(spec, "loader", None), SourceFileLoader)
            wanted = wanted and spec.name == name
        else:
            wanted = ours
        if wanted and name not in (*start_bundle.EARLIER, __name__):
            status = os.stat(spec.origin)  # before its code is read: an edit in between counts
            package = spec.submodule_search_locations is not None
            code = spec.loader.get_code(name)
            if kind == start_bundle.COMMAND:
                code = _lean(code)
            if called and name not in others:
                code = _apart(code, codes, called)
            text = marshal.dumps(code)
            source = spec.origin, status.st_mtime_ns, status.st_size
            entries[name] = (*source, package, len(codes), len(text))
            codes += text
    return entries, bytes(codes)


def _libraries() -> dict[str, start_bundle.Library]:
    """The C modules of the standard library that are loaded from files: file, time and size."""
    found = {}
    folder = os.path.dirname(os.__file__) + "/"
    for name, module in list(sys.modules.items()):
        spec: Any = getattr(module, "__spec__", None)
        wanted = isinstance(getattr(spec, "loader", None), ExtensionFileLoader)
        if wanted and spec.name == name and spec.origin.startswith(folder) and "." not in name:
            status = os.stat(spec.origin)
            found[name] = spec.origin, status.st_mtime_ns, status.st_size
    return found


def _apart(code: CodeType, codes: bytearray, called: set[tuple[str, int, str]]) -> CodeType:
    """The code of a module or class, with that of functions which are not called put apart."""
    parts: list[object] = []
    for part in code.co_consts:
        if isinstance(part, type(code)):
            if not part.co_flags & _OPTIMIZED:  # of a class
                part = _apart(part, codes, called)
            elif _can_wait(part):
                key = part.co_filename, part.co_firstlineno, part.co_qualname
                text = b"" if key in called else marshal.dumps(part)
                if len(text) > _SMALL + len(_documentation(part) or ""):
                    part = _stub(part, len(codes), len(text))
                    codes += text
        parts.append(part)
    # Of what nothing else refers to: marshal then keeps fewer references.
    return marshal.loads(marshal.dumps(code.replace(co_consts=tuple(parts))))  # type: ignore[no-any-return]  # noqa: S302


def _lean(code: CodeType) -> CodeType:
    """The code without the annotations and the documentation of functions."""
    given = [_lean(part) if isinstance(part, type(code)) else part for part in code.co_consts]
    used: dict[int, set[int]] = {}
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opcode in dis.hasconst and step.arg is not None:
            used.setdefault(step.arg, set()).add(at)
    notes = {at for at, step in enumerate(steps) if step.opname == "MAKE_FUNCTION"}
    notes = {_annotation(steps, at) for at in notes}
    for number, places in used.items():
        if places <= notes:
            given[number] = ()
    if code.co_flags & _OPTIMIZED and _documentation(code) is not None and 0 not in used:
        given[0] = None
    return code.replace(co_consts=tuple(given))


def _annotation(steps: list[dis.Instruction], at: int) -> int:
    """Where the names and texts of a function's annotations are loaded that is made there; or -1.

    They are told by a flag of that step, or of those that follow it since Python 3.13, and are
    loaded before its code and what it closes over.
    """
    flags = steps[at].arg or 0
    for step in steps[at + 1 :]:
        if step.opname != "SET_FUNCTION_ATTRIBUTE":
            break
        flags |= step.arg or 0
    place = at - 2
    if flags & _CLOSES_OVER:
        while steps[place].opname.startswith(("LOAD_CLOSURE", "LOAD_FAST", "BUILD_TUPLE")):
            place -= 1
    found = steps[place].argval if flags & _ANNOTATED else None
    return place if isinstance(found, tuple) else -1


def _can_wait(code: CodeType) -> bool:
    name = code.co_name
    return (
        name.isidentifier()
        and not iskeyword(name)
        and name not in _KEPT
        and not code.co_freevars
        and not code.co_flags & _GENERATORS
        and not _FRAMES.intersection(code.co_names)
    )


def _stub(code: CodeType, offset: int, size: int) -> CodeType:
    """Code with the same arguments that has the function get its own, and calls it with them."""
    names = code.co_varnames
    plain = names[: code.co_argcount]
    named = names[len(plain) : len(plain) + code.co_kwonlyargcount]
    rest = iter(names[len(plain) + len(named) :])
    given: list[str] = list(plain)
    words: list[str] = list(plain)
    if code.co_posonlyargcount:
        words.insert(code.co_posonlyargcount, "/")
    if code.co_flags & _ARGS:
        words.append(f"*{next(rest)}")
        given.append(words[-1])
    elif named:
        words.append("*")
    words += named
    given += [f"{name}={name}" for name in named]
    if code.co_flags & _KWARGS:
        words.append(f"**{next(rest)}")
        given.append(words[-1])
    waits = bool(code.co_flags & _COROUTINE)
    says = "" if (text := _documentation(code)) is None else f"{text!r}; "
    later = start_bundle.LATER  # nothing when the interpreter has taken the module down
    call = f"{later}({offset}, {size})({', '.join(given)})"
    source = (
        f"{'async ' * waits}def {code.co_name}({', '.join(words)}):"
        f" {says}return {later} and {'await ' * waits}{call}"
    )
    made: CodeType = compile(source, code.co_filename, "exec").co_consts[0]
    return made.replace(co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno)


def _documentation(code: CodeType) -> str | None:
    if sys.version_info >= (3, 14) and not code.co_flags & _DOCUMENTED:
        return None
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) else None
