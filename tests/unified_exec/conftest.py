"""An agent with real processes on this machine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from tests.unified_exec.agent import Agent, agent_with


@pytest.fixture
def agent() -> AbstractAsyncContextManager[Agent]:
    return agent_with()
