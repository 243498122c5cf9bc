"""For every test: how coroutines run, and how hypothesis works here.

A test that is a coroutine runs on uvloop, as the server does, and must leave the loop clean.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import uvloop
from hypothesis import settings

# A busy machine is slow, which says nothing about the code; pytest's own limit is the limit.
settings.register_profile("handrail", deadline=None)
settings.load_profile("handrail")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def run(main: Any) -> None:
    """Run a test to its end; whatever the loop complains about fails it."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: complaints.append(c))
        async with asyncio.timeout(55):
            await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    assert complaints == []
