"""Decodes records of the ring by msgspec; the porter writes them without it."""

from __future__ import annotations

import msgspec

from handrail.network.records import Record

_decoder = msgspec.json.Decoder(Record)


def decode(body: bytes) -> Record:
    """One record; raises ValueError."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
