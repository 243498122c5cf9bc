"""The base of all shapes: camelCase on the wire, snake_case here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Wire(Struct, rename="camel", kw_only=True):
    """A JSON object of the wire.  Unknown members of inbound ones are ignored."""


U64_MAX = 2**64 - 1
#: An unsigned number; its upper bound exceeds what msgspec checks: ``codec.convert`` has it.
Unsigned = Annotated[int, Meta(ge=0)]
U16 = Annotated[int, Meta(ge=0, le=65_535)]
