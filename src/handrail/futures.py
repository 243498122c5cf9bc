"""Callbacks for futures: set one that may be done already; take an exception as seen."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from typing import Any


def set_done(future: Future[None]) -> None:
    """Set the result, unless the future is done or cancelled."""
    if not future.done():
        future.set_result(None)


def retrieve_exception(future: Future[Any]) -> None:
    """Keep asyncio from reporting an exception that no caller may be left to await."""
    if not future.cancelled():
        future.exception()
