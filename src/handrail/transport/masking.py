"""The mask of WebSocket frames: XOR with four bytes.  Pure.

Short payloads, nearly all of a client's, use integer arithmetic.  For long ones Python has nothing
fast (780 MB/s at best), and the C function of the ``websockets`` package has (15 GB/s in pieces of
256 KiB); that one file is loaded, at the first long payload, without the rest of its package, whose
import costs 40 ms.  Without its compiled part, arithmetic remains.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader

#: Above this size int arithmetic falls out of the cache: 330 MB/s for 1 MiB in one piece,
#: 780 MB/s in pieces of 16 KiB (bytes.translate over four strides: 640 MB/s).
_BLOCK = 16 * 1024

Masking = Callable[[bytes, bytes], bytes]


def apply_mask(data: bytes, mask: bytes) -> bytes:
    """XOR ``data`` with the four bytes of ``mask``; the same call masks and unmasks."""
    size = len(data)
    if size > _BLOCK:
        return _for_long()(data, mask)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ key).to_bytes(size, "little")


def mask_by_blocks(data: bytes, mask: bytes) -> bytes:
    """Mask in pure Python, for payloads of any length."""
    key = int.from_bytes(mask * (_BLOCK // 4), "little")
    whole = len(data) - len(data) % _BLOCK
    pieces = []
    for pos in range(0, whole, _BLOCK):
        block = int.from_bytes(data[pos : pos + _BLOCK], "little")
        pieces.append((block ^ key).to_bytes(_BLOCK, "little"))
    pieces.append(apply_mask(data[whole:], mask))
    return b"".join(pieces)


@cache
def _for_long() -> Masking:
    return compiled() or mask_by_blocks


def compiled() -> Masking | None:
    """The C function, if its package is installed and has it."""
    try:
        package = importlib.util.find_spec("websockets")
    except ModuleNotFoundError:  # only where commands can write (``own_code``)
        package = None
    folders = (package.submodule_search_locations or ()) if package is not None else ()
    for folder in folders:
        for suffix in EXTENSION_SUFFIXES:
            file = os.path.join(folder, "speedups" + suffix)
            if os.path.exists(file):
                return _load(file)
    return None


def _load(file: str) -> Masking | None:
    name = "websockets.speedups"
    try:
        loader = ExtensionFileLoader(name, file)
        spec = importlib.util.spec_from_file_location(name, file, loader=loader)
        if spec is None:
            return None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        masking: Masking = module.apply_mask
    except (ImportError, AttributeError):
        return None
    return masking
