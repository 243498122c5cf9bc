"""Small immutable values, cheap to define.

They replace dataclasses, named tuples and enumerations, because importing those took longer than
starting the sandbox: ``handrail sandbox`` is a new program each time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import IntEnum
    from typing import Any, Self, dataclass_transform

    Choice = IntEnum

    @dataclass_transform(frozen_default=True)
    class Frozen:
        """For the type checker: a frozen dataclass."""

        def _replace(self, **changes: Any) -> Self: ...

else:

    class _Members(type):
        def __iter__(cls):
            return (value for value in vars(cls).values() if isinstance(value, cls))

    class Choice(int, metaclass=_Members):
        """Like an IntEnum: members by name, comparison and iteration."""

        def __init_subclass__(cls) -> None:
            for name, value in list(vars(cls).items()):
                if type(value) is int:
                    member = cls(value)
                    member.name = name
                    setattr(cls, name, member)

        def __repr__(self) -> str:
            return f"{type(self).__name__}.{self.name}"

        def __reduce__(self):
            return getattr, (type(self), self.name)

    class Frozen:
        """Fields by annotation, in order; values compare and hash by them."""

        #: The hash is kept: a profile is looked up several times for each command.
        __slots__ = ("__dict__", "__weakref__", "_hash")

        def __init_subclass__(cls) -> None:
            cls.__match_args__ = tuple(cls.__annotations__)
            cls._names = frozenset(cls.__match_args__)

        def __init__(self, *values, **named) -> None:
            fields = self.__match_args__
            if not named and len(values) == len(fields):
                self.__dict__.update(zip(fields, values, strict=True))
                return
            given = dict(zip(fields, values, strict=False))
            given.update(named)
            if len(values) > len(fields) or len(given) != len(values) + len(named):
                raise TypeError(f"{type(self).__name__}: too many values")
            if given.keys() != self._names:
                for name in fields:
                    if name not in given:
                        given[name] = getattr(type(self), name)  # the default
            if len(given) != len(fields):
                raise TypeError(f"{type(self).__name__}: no such field among {list(named)}")
            self.__dict__.update(given)

        def __setattr__(self, name, value) -> None:
            raise AttributeError(f"{name} cannot be changed")

        def __eq__(self, other) -> bool:
            return type(self) is type(other) and self.__dict__ == other.__dict__

        def __hash__(self) -> int:
            try:
                return self._hash
            except AttributeError:
                values = self.__dict__
                found = hash(tuple([values[name] for name in self.__match_args__]))
                object.__setattr__(self, "_hash", found)
                return found

        def __getstate__(self) -> dict[str, Any]:
            return self.__dict__  # without the hash, which is another one in another process

        def __repr__(self) -> str:
            shown = ", ".join(f"{k}={self.__dict__[k]!r}" for k in self.__match_args__)
            return f"{type(self).__name__}({shown})"

        def _replace(self, **changes):
            if not changes.keys() <= self._names:
                raise TypeError(f"{type(self).__name__}: no such field among {list(changes)}")
            made = object.__new__(type(self))
            made.__dict__.update(self.__dict__)
            made.__dict__.update(changes)
            return made
