"""For tests of programs that use handrail: scripted executors, and a server in memory.

``pytest_plugins = ["handrail.testing.fixtures"]`` in a conftest.py loads the fixtures.
"""

from handrail.executor.fake import Exit, Expect, FakeExecutor, FakeSession, Pause, Say
from handrail.executor.fake_files import FakeFiles
from handrail.testing.memory_server import memory_executor, memory_server
from handrail.transport.memory import memory_pair

__all__ = [
    "Exit",
    "Expect",
    "FakeExecutor",
    "FakeFiles",
    "FakeSession",
    "Pause",
    "Say",
    "memory_executor",
    "memory_pair",
    "memory_server",
]
