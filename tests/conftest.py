"""For every test: how coroutines run, what may be left behind, and how hypothesis works here."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from handrail import own_code
from tests.support import counted_keeper
from tests.support.coroutines import run
from tests.support.processes import GRACE, nothing_left
from tests.support.sandboxes import Held, holding

# Rewriting the asserts of all modules takes seconds of each worker: it is kept also where
# PYTHONDONTWRITEBYTECODE is set, which goes on for the programs that tests start.
sys.dont_write_bytecode = False

# A busy machine is slow, which says nothing about the code; pytest's own limit is the limit.
settings.register_profile("handrail", deadline=None)
settings.load_profile("handrail")

counted_keeper.install()

# A job in the background of a script ignores these, and so would every command of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

HOME = Path(__file__).parent
#: Where a process must have been reaped when its test has ended.
AT_ONCE = {"keeper", "process", "unified_exec"}
#: Where no test may leave a descriptor open.
COUNTED = {"filesystem", *AT_ONCE}
#: Where coroutines run on asyncio's loop too; elsewhere those with the marker of this name.
BOTH_LOOPS = {"transport"}
#: Modules whose tests share one program that takes long to start: each runs in one worker, first.
#: xdist's own mark for this, ``xdist_group``, is without effect where pytest is 9.2 or newer.
ONE_WORKER = {
    "tests/fleet/test_ray.py",
    "tests/network/test_attacks.py",
    "tests/system/test_network_tools.py",
}
#: What ``make quick`` runs, directories and modules: no server, keeper or sandbox is started there.
PURE = {
    ".": "patch policy protocol telemetry",
    "executor": "fake timeout",
    "executor/client": "rpc",
    "executor/output": "buffer reorder",
    "fleet/tasks": "progress_bar results_file runner task_file",
    "keeper": "timeout_and_grace messages",
    "keeper/servers": "lease orphan_ttl",
    "network": "address_classes bodies config decide denial_notes heads hosts patterns records"
    " refusal_replies settings socks",
    "fleet": "pure",
    "orchestrator": "approvals approvers call network_call question_text result narrow_offer",
    "process": "env_policy linear_regex spec",
    "process/output": "event_index output_log",
    "process/stdin": "ledger",
    "results": "record store",
    "sandbox": "denial explain_refusal intent profile",
    "sandbox/warm": "demand",
    "sandboxed_files": "frames",
    "server/auth": "admission tokens",
    "server/methods": "config",
    "transport": "connection_limits frames http_head line_framing masking memory stream",
    "unified_exec": "events head_tail keys prune tools truncate wait",
    "wire": "checks matching",
}


_state_home = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Give all tests a state home of their own: what they leave there costs other sandboxes time.

    Workers inherit it from the process that starts them.
    """
    if not hasattr(config, "workerinput"):
        made = tempfile.TemporaryDirectory(prefix="handrail-tests-", dir="/var/tmp")
        config.stash[_state_home] = made
        os.environ["XDG_STATE_HOME"] = made.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests one by one, and those of ``ONE_WORKER`` by the module."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return module if module in ONE_WORKER else nodeid

    return Scheduler(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the state home of the tests."""
    if _state_home in config.stash:
        config.stash[_state_home].cleanup()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines; on uvloop, as the server does, unless ``loop`` is given."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(_call(pyfuncitem.obj, pyfuncitem.funcargs), pyfuncitem.funcargs.get("loop", "uvloop"))
    return True


async def _call(test: Callable[..., Coroutine[Any, Any, None]], given: Mapping[str, Any]) -> None:
    """Call a test; what a fixture gives as an asynchronous context is entered on its loop."""
    async with AsyncExitStack() as stack:
        for name in inspect.signature(test).parameters:
            if isinstance(given[name], AbstractAsyncContextManager):
                given = {**given, name: await stack.enter_async_context(given[name])}
        await test(**{name: given[name] for name in inspect.signature(test).parameters})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what depends on how a loop watches descriptors on asyncio's loop too."""
    marked = metafunc.definition.get_closest_marker("both_loops") is not None
    here = BOTH_LOOPS & set(metafunc.definition.path.relative_to(HOME).parts)
    if marked or (here and inspect.iscoroutinefunction(metafunc.function)):
        if "loop" not in metafunc.fixturenames:
            metafunc.fixturenames.append("loop")
        metafunc.parametrize("loop", ["asyncio", "uvloop"])


def _is_pure(path: Path) -> bool:
    place = path.relative_to(HOME)
    names = PURE.get(str(place.parent), "").split()
    return place.parts[0] in PURE["."].split() or place.stem.removeprefix("test_") in names


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything that is not pure as ``system``."""
    for item in items:
        if not _is_pure(item.path):
            item.add_marker(pytest.mark.system)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what ``make quick`` leaves out."""
    left_out = config.option.markexpr == "not system" and collection_path.suffix == ".py"
    return True if left_out and not _is_pure(collection_path) else None


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a process behind."""
    here = set(request.path.relative_to(HOME).parts)
    with nothing_left(grace=0 if here & AT_ONCE else GRACE, counted=bool(here & COUNTED)):
        yield


@pytest.fixture(autouse=True)
def _roots() -> Iterator[None]:
    """Directories that commands of one test may write are no danger in the next.

    A program keeps them for good, and starts no ``ssh`` that lies in one.
    """
    roots, kept = set(own_code._roots), set(own_code._kept)
    yield
    own_code._roots.intersection_update(roots)
    own_code._kept.intersection_update(kept)
    own_code._safe.clear()


@pytest.fixture
def ws() -> Iterator[Path]:
    """A workspace outside of the system's temporary directory, which other tests fill."""
    place = Path(tempfile.mkdtemp(prefix="handrail-ws-", dir="/var/tmp"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def held() -> Iterator[Held]:
    """Run commands in a sandbox without a server."""
    with holding() as held:
        yield held


@pytest.fixture
def server_options() -> tuple[str, ...]:
    """How the server of ``url`` is started."""
    return ()


@pytest.fixture
def url(tmp_path: Path, server_options: tuple[str, ...]) -> Iterator[str]:
    """The address of a server, a program of its own."""
    from tests.support.servers import server_process  # pure tests need none of it

    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state, *server_options) as server:
        yield server.url


@pytest.fixture(params=["near", "far"])
def at(request: pytest.FixtureRequest) -> str | None:
    """This machine, and a real server."""
    return None if request.param == "near" else request.getfixturevalue("url")
