"""Keeper and server killed within milliseconds of each other, in every order.

Whatever the order and the time between: the next server on the state directory has a process, with
its session, or has ended it with everything it had started.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.eventually import eventually
from tests.support.processes import bearing, children, ended, nothing_left, status
from tests.support.servers import ServerProcess
from tests.system.test_keeper_faults import Client
from tests.system.users import ordinary

pytestmark = [pytest.mark.system, pytest.mark.fault]

FAMILIES = 4
EACH = 3
#: Who is killed, in which order; the second keeper is the one that the server starts next.
ORDERS = {
    "keeper, server": ("keeper", "server"),
    "server, keeper": ("server", "keeper"),
    "keeper, second keeper, server": ("keeper", "second", "server"),
    "keeper, server, second keeper": ("keeper", "server", "second"),
}
#: Milliseconds between two of them.  More of them: ``HANDRAIL_DELAYS=0,1,2,5,10,20,50,100``.
DELAYS = [float(one) for one in os.environ.get("HANDRAIL_DELAYS", "2,10").split(",")]


def start_families(client: Client, word: str) -> None:
    sleeper = f"sleep 1000.{word}"
    for number in range(FAMILIES):
        script = f"setsid {sleeper} & (setsid {sleeper} &); exec {sleeper}"
        client.start(f"p{number}", "sh", "-c", script)
    eventually(lambda: len(living(word)) == FAMILIES * EACH, "all families are there")


def living(word: str) -> list[int]:
    return sorted(bearing("sleep\0" + "1000." + word))


def die(server: ServerProcess, order: tuple[str, ...], delay: float) -> None:
    first = server.keeper()
    victims = {"keeper": first, "server": server.pid}
    for number, name in enumerate(order):
        if number == 1 and "second" in order:
            victims["second"] = eventually(lambda: second(server.pid, first), "the second keeper")
        if number:
            time.sleep(delay / 1000)  # the time between the two is what this is about
        os.kill(victims[name], signal.SIGKILL)
        if name == "server":
            server.process.wait()


def second(server: int, first: int) -> int:
    return next((pid for pid in children(server) if pid != first), 0)


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_left_that_no_server_knows(tmp_path: Path, order: str, user: str) -> None:
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root can do")
    for number, delay in enumerate(DELAYS):
        home = tmp_path / f"home{number}"
        prefix = ordinary(home) if user == "ordinary" else ()
        home.mkdir(exist_ok=True)
        with nothing_left():
            die_and_go_on(home / "state", prefix, order, delay)


def die_and_go_on(state: Path, prefix: tuple[str, ...], order: str, delay: float) -> None:
    word = f"{random.SystemRandom().getrandbits(60):020d}"
    try:
        server = ServerProcess(state, prefix=prefix)
        with connect(server.url, proxy=None, ping_interval=None) as ws:
            client = Client(ws)
            start_families(client, word)
            die(server, ORDERS[order], delay)
        server.close()
        following = ServerProcess(state, prefix=prefix)
        try:
            with connect(following.url, proxy=None, ping_interval=None) as ws:
                known = families_of(ws, client.session)
                what = f"only what is known lives, {order}, {delay} ms: {known} known"
                eventually(lambda: len(living(word)) == EACH * known, what)
        finally:
            following.stop()
            following.close()
        eventually(lambda: not living(word), "a server that stops ends what it knows")
    finally:
        for pid in living(word):
            os.kill(pid, signal.SIGKILL)


def families_of(ws: ClientConnection, session: str) -> int:
    """How many processes of a session are there; 0 when it is not known any more."""
    try:
        client = Client(ws, session)
    except AssertionError:
        return 0
    return len(client.call("process/list")["processes"])


@pytest.mark.parametrize("has", ["families", "nothing"])
def test_a_keeper_that_lost_its_socket_is_ended_with_what_it_has(tmp_path: Path, has: str) -> None:
    state = tmp_path / "state"
    word = f"{random.SystemRandom().getrandbits(60):020d}"
    with nothing_left():
        server = ServerProcess(state)
        with connect(server.url, proxy=None, ping_interval=None) as ws:
            if has == "families":
                start_families(Client(ws), word)
            keeper = server.keeper()
            (state / "keeper.sock").unlink()
            server.process.kill()
            server.process.wait()
        server.close()
        following = ServerProcess(state)
        eventually(lambda: not living(word), "what cannot be found again is ended")
        assert ended(keeper)
        following.stop()
        following.close()


def test_a_directory_that_two_deaths_left_is_cleared_by_the_next_server_anywhere(
    tmp_path: Path,
) -> None:
    """Without a name the next server may take another directory, and this one never again."""
    env = {"XDG_STATE_HOME": str(tmp_path)}
    base = tmp_path / "handrail" / "servers"
    word = f"{random.SystemRandom().getrandbits(60):020d}"
    base.mkdir(parents=True)
    with nothing_left():
        server = ServerProcess(base / "7", env=env)
        with connect(server.url, proxy=None, ping_interval=None) as ws:
            start_families(Client(ws), word)
            keeper = server.keeper()
            # Stopped, so that it cannot give them to the next keeper in between.
            server.process.send_signal(signal.SIGSTOP)
            eventually(lambda: status(server.pid)["State"].startswith("T"), "it is stopped")
            os.kill(keeper, signal.SIGKILL)
            server.process.kill()
            server.process.wait()
        server.close()
        (base / "7").chmod(0o700)
        following = ServerProcess(None, env=env)
        eventually(lambda: not living(word), "they are ended")
        following.stop()
        following.close()
