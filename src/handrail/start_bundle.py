"""The compiled modules of a start in one file, beside the interpreter's own.

``handrail run`` imports some fifty modules before its command starts, ``handrail serve`` three
hundred, those of the standard library and of other packages included.  To find, check and read a
compiled file takes longer than to execute it, and each repeats strings of the others; all of them
in one file take half as long.  Each of the two has a file of its own.  An entry is used by the rule
of every compiled file: its source has the size and the time that it had.  The file is in
``__pycache__``, which no command can write
(``own_code.py``).  Without it, or with a stale one, modules are imported as usual and it is made
anew.  One that was copied with its package is stale: its sources are those of the original, which
commands may be able to write.

Most functions of these modules are not called in a start.  Their code is apart from that of their
module and read when they are called (``call_later``): until then a function has a few instructions
that do so, made by ``start_bundle_writer.py``, which is loaded only to write a file.

``dataclasses`` writes the methods of each class as text and compiles them at every start: half a
millisecond a class, and a server has some forty.  The file of a server has that text with its code,
and what its regular expressions are compiled to.

``__future__`` is among the modules, so it is not imported here.
"""

import _frozen_importlib
import _thread
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, FrameType, FunctionType, ModuleType
    from typing import Any, TypeVar

    _T = TypeVar("_T")

    #: Source, its time and size, whether it is a package, and where in the file its code is.
    Entry = tuple[str, int, int, bool, int, int]
    #: A C module of the standard library, its time and size.
    Library = tuple[str, int, int]

_PACKAGE = os.path.dirname(__file__)
#: The file of a command, with modules of ours, and that of a server, with all.
COMMAND, SERVER = "start", "serve"
#: Changed with the form of the files: this module is not in them, so it is not compared.
_FORM = 8
#: The bytes of the number that the file begins with: the size of its table.  Codes follow that.
NUMBER = 4
#: What ``call_later`` is in the modules of the file: no import, which fails while a program ends.
LATER = "__call_later__"
#: Imported before the file can be used.
EARLIER = ("__main__", "handrail.__main__", __name__)
#: The file that is to be made, for there was none that could be used.
_wanted: str | None = None
#: The code of texts that ``dataclasses`` has written.
_generated: "dict[str, CodeType]" = {}
#: What regular expressions are made of, by their text and flags.
_patterns: "dict[tuple[str | bytes, int], tuple[Any, ...]]" = {}
#: What was computed, and is the same in each start.
_computed: "dict[str | tuple[object, ...], bytes]" = {}
#: The functions that were called in a start that is to be written: file, line and name.
_called: "set[tuple[str, int, str]]" = set()
#: The file that is used, and where its codes begin.
_used = -1, 0
#: The modules in it.
_entries: "dict[str, Entry]" = {}
#: Functions in the place of those that could not be found to be given their code, by its offset.
_instead: "dict[int, FunctionType]" = {}


class _Loader(SourceFileLoader):
    """The usual loader of a source, but for where its code is from."""

    bundle: "tuple[int, int, int]"

    def get_code(self, fullname: str) -> "CodeType":
        """The code of the module."""
        fd, size, offset = self.bundle
        # Each when it is wanted: memory that is touched for the first time costs more than a call.
        return marshal.loads(os.pread(fd, size, offset))  # type: ignore[no-any-return]  # noqa: S302

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module."""
        vars(module)[LATER] = call_later
        super().exec_module(module)


class _Finder:
    """Finds and loads what is in the file, which stays open."""

    def __init__(
        self, fd: int, start: int, entries: "dict[str, Entry]", libraries: "dict[str, Library]"
    ) -> None:
        self._fd = fd
        self._start = start
        self._entries = entries
        self._libraries = libraries
        self._usual: Any = vars(_frozen_importlib).get("_find_and_load")

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Called by the import system."""
        entry = self._entries.get(name)
        if entry is None:
            return self._library(name)
        source, _, _, package, offset, size = entry
        loader = _Loader(name, source)
        loader.bundle = self._fd, size, self._start + offset
        spec = ModuleSpec(name, loader, origin=source, is_package=package)
        spec.has_location = True
        folder, _, file = source.rpartition("/")
        # Else the import system finds it out by many steps, for each module.
        spec.cached = f"{folder}/__pycache__/{file[:-3]}.{sys.implementation.cache_tag}.pyc"
        if package:
            spec.submodule_search_locations = [folder]
        return spec

    def _library(self, name: str) -> "ModuleSpec | None":
        """A C module, which the import system would look for in each directory of the path."""
        found = self._libraries.get(name)
        if found is None:
            return None
        spec = ModuleSpec(name, ExtensionFileLoader(name, found[0]), origin=found[0])
        spec.has_location = True
        return spec

    def take_over(self) -> None:
        """Load by ``load`` what is in the file and not imported yet."""
        if self._usual is not None:
            vars(_frozen_importlib)["_find_and_load"] = self.load

    def load(self, name: str, import_: "Callable[[str], object]") -> "ModuleType":
        """Import a module that is missing in ``sys.modules``, in the place of the import system.

        It does what that does, but for locks, which take longer than most of these modules: so
        only while there is one thread.
        """
        modules = sys.modules
        if name not in self._entries or name in modules or _thread._count():  # noqa: SLF001
            return self._usual(name, import_)  # type: ignore[no-any-return]
        parent, _, child = name.rpartition(".")
        if parent and parent not in modules:
            import_(parent)
            if name in modules:  # its package has imported it
                return modules[name]
        spec: Any = self.find_spec(name)
        loader = spec.loader
        module = modules[name] = type(sys)(name)
        names = vars(module)
        names["__spec__"], names["__loader__"], names["__file__"] = spec, loader, spec.origin
        names["__cached__"], names[LATER] = spec.cached, call_later
        names["__package__"] = parent
        if spec.submodule_search_locations is not None:
            names["__package__"], names["__path__"] = name, spec.submodule_search_locations
        spec._initializing = True  # noqa: SLF001 (as the import system does)
        try:
            exec(loader.get_code(name), names)  # noqa: S102 (a module)
        except BaseException:
            modules.pop(name, None)
            raise
        finally:
            spec._initializing = False  # noqa: SLF001 (as the import system does)
        module = modules[name]  # it may have replaced itself
        if parent:
            setattr(modules[parent], child, module)
        return module


def place(kind: str) -> str:
    return os.path.join(_PACKAGE, "__pycache__", f"{kind}.{sys.implementation.cache_tag}")


def made_for(kind: str) -> "tuple[Any, ...]":
    """The facts for which a bundle was made; other packages are found by the path."""
    return (_FORM, sys.hexversion, _PACKAGE, *(sys.path if kind == SERVER else ()))


def use(kind: str = COMMAND) -> None:
    """Import from the file from now on, if there is one that is valid."""
    global _used, _wanted
    if sys.flags.optimize or sys.pycache_prefix is not None:
        return  # compiled files are of another kind, or elsewhere
    fd = -1
    try:
        fd = os.open(place(kind), os.O_RDONLY | os.O_CLOEXEC)
        start = NUMBER + int.from_bytes(os.pread(fd, NUMBER, 0), "big")
        table = marshal.loads(os.pread(fd, start - NUMBER, NUMBER))  # noqa: S302 (as any import does)
        facts, entries, libraries, generated, patterns, computed, size = table
        files = *entries.values(), *libraries.values()
        whole = os.fstat(fd).st_size == start + size
        valid = whole and facts == made_for(kind) and all(map(_is_current, files))
    except (OSError, ValueError, EOFError, TypeError, MemoryError):
        valid = False
    if valid:
        _used = fd, start
        finder = _Finder(fd, start, entries, libraries)
        sys.meta_path.insert(0, finder)
        finder.take_over()
        _entries.update(entries)
        _generated.update(generated)
        _patterns.update(patterns)
        _computed.update(computed)
    else:
        if fd >= 0:
            os.close(fd)
        _wanted = kind
    if kind == SERVER:
        _compile_patterns_once()
        import dataclasses

        # Found there before the built-in function.
        vars(dataclasses)["exec"] = _execute


def has(name: str) -> bool:
    """Whether a module is in the file that is used."""
    return name in _entries


def _compile_patterns_once() -> None:
    """Make regular expressions of what they were compiled to by an earlier start.

    Their compiler is Python; what it makes is a list of numbers, the same for one version of it.
    """
    import re

    compiler: Any = vars(re).get("_compiler")
    names = vars(compiler) if compiler is not None else {}
    if not {"compile", "_sre"} <= names.keys():
        return  # another version of it
    usual, machine = names["compile"], names["_sre"]

    class Noting:
        """The C module that makes them, with a note of what it was given."""

        __getattr__ = staticmethod(machine.__getattribute__)

        def compile(
            self, pattern: "str | bytes", flags: int, code: list[int], *groups: "Any"
        ) -> "re.Pattern[Any]":
            given[:] = [(pattern, int(flags), list(map(int, code)), *groups)]  # no names of them
            return machine.compile(pattern, flags, code, *groups)  # type: ignore[no-any-return]

    def once(pattern: "Any", flags: int = 0) -> "re.Pattern[Any]":
        made = _patterns.get((pattern, flags)) if type(pattern) in (str, bytes) else None
        if made is None:
            given.clear()
            found: re.Pattern[Any] = usual(pattern, flags)
            if _wanted is not None and given and type(pattern) in (str, bytes):
                _patterns[pattern, int(flags)] = given[0]
            return found
        return machine.compile(*made)  # type: ignore[no-any-return]

    given: list[tuple[Any, ...]] = []
    names["compile"] = once
    if _wanted is not None:
        names["_sre"] = Noting()


def _execute(source: "str | CodeType", *names: "Any") -> None:
    """Execute a text as the built-in ``exec`` does, but compile each only once."""
    if isinstance(source, str):
        code = _generated.get(source)
        if code is None:
            code = compile(source, "<string>", "exec")
            if _wanted is not None:  # else nothing is to be written
                _generated[source] = code
        source = code
    exec(source, *names)  # noqa: S102 (what dataclasses was about to execute)


def call_later(offset: int, size: int) -> "FunctionType":
    """The function that calls this, which has its code from now on."""
    frame = sys._getframe(1)  # noqa: SLF001 (the only way to it)
    stub, names = frame.f_code, frame.f_globals
    function = _instead.get(offset)
    if function is None:
        fd, start = _used
        code = marshal.loads(os.pread(fd, size, start + offset))  # noqa: S302 (as any import does)
        function = _found(names, stub)
        if function is not None:
            function.__code__ = code
        else:
            function = _instead[offset] = _FUNCTION(code, names, stub.co_name)
    return function


_FUNCTION: "Any" = type(call_later)


def _found(names: "Mapping[str, Any]", stub: "CodeType") -> "FunctionType | None":
    """The function of a module or class that has this code; None for one inside a decorator's."""
    *classes, name = stub.co_qualname.split(".")
    for part in classes:
        owner = names.get(part)
        if not isinstance(owner, type):
            return None
        names = vars(owner)
    for value in (names.get(name), *list(names.values())):  # or under another name
        inside: tuple[Any, ...] = (value,)
        if isinstance(value, property):
            inside = value.fget, value.fset, value.fdel
        elif isinstance(value, (staticmethod, classmethod)):
            inside = (value.__func__,)
        elif type(value) is _FUNCTION:
            inside = value, getattr(value, "__wrapped__", None)
        for function in inside:
            if type(function) is _FUNCTION and function.__code__ is stub:
                return function  # type: ignore[no-any-return]
    return None


def computed(name: "str | tuple[object, ...]", compute: "Callable[[], bytes]") -> bytes:
    """What ``compute`` gives, which depends on nothing but our code and what is in its name."""
    found = _computed.get(name)
    if found is None:
        found = unnoted(compute)
        if _wanted is not None:
            _computed[name] = found
    return found


def wanted() -> bool:
    """Whether there was none that could be used, and one may be written."""
    return _wanted is not None and not sys.dont_write_bytecode


def note() -> None:
    """If one is to be written: note which functions are called from now on, in this thread."""
    if wanted() and sys.getprofile() is None:
        sys.setprofile(_note)


def _note(frame: "FrameType", event: str, _: object) -> None:
    if event == "call":
        code = frame.f_code
        _called.add((code.co_filename, code.co_firstlineno, code.co_qualname))


def unnoted(compute: "Callable[[], _T]") -> "_T":
    """What ``compute`` gives; the next start knows it, so what it calls is not noted."""
    noting = sys.getprofile() is _note
    if noting:
        sys.setprofile(None)
    try:
        return compute()
    finally:
        if noting:
            sys.setprofile(_note)


def noted() -> None:
    """Note no more."""
    if sys.getprofile() is _note:
        sys.setprofile(None)


def make() -> None:
    """If there was none: write the modules that are loaded, as far as that is allowed."""
    global _wanted
    noted()
    kind, _wanted = _wanted, None
    if kind == COMMAND and "handrail.sandbox.profile" not in sys.modules:
        return  # a start without a sandbox: most modules would be missing
    if kind is not None and not sys.dont_write_bytecode:
        from handrail import start_bundle_writer

        parts = _generated, _patterns, _computed
        start_bundle_writer.write(kind, made_for(kind), parts, _called)


def _is_current(entry: "Entry | Library") -> bool:
    status = os.stat(entry[0])
    return status.st_mtime_ns == entry[1] and status.st_size == entry[2]
