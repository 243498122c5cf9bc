"""Return memory to the system after many children have ended.

Freed objects leave holes in the C library's heap, which keeps them; after ten thousand children
that was a quarter of the server's size.  A trim costs less than a millisecond.
"""

from __future__ import annotations

import ctypes
import gc

#: After many have ended at once, what was in flight with them settles first.
SETTLE_SECONDS = 0.25
#: Fewer children than this leave too little behind to be worth it.
MANY = 64


def give_back() -> None:
    """Return free heap pages to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect() -> None:
    """Collect garbage, and return the pages that are free then."""
    gc.collect()
    give_back()
