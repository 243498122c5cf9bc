"""Which addresses lead to a listener of this process: what is unclear does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from handrail import listeners
from handrail.sandbox.syscalls import server_ports


def v4(host: str, port: int) -> bytes:
    family = int(socket.AF_INET).to_bytes(2, sys.byteorder)
    return family + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)


def v6(host: str, port: int, scope: int = 0) -> bytes:
    family = int(socket.AF_INET6).to_bytes(2, sys.byteorder)
    packed = socket.inet_pton(socket.AF_INET6, host)
    head = family + port.to_bytes(2, "big") + bytes(4)
    return head + packed + scope.to_bytes(4, sys.byteorder)


HERE_4 = ["127.0.0.1", "127.9.8.7", "0.0.0.0", "255.255.255.255", "224.0.0.1"]
HERE_6 = ["::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::127.0.0.1", "fe80::1", "febf::9"]
ELSEWHERE_4 = ["192.0.2.1", "203.0.113.9"]
ELSEWHERE_6 = ["2001:db8::1", "::ffff:192.0.2.1", "::192.0.2.1"]


@pytest.fixture
def port() -> object:
    with listeners.open_tcp("127.0.0.1", 0, 5) as sock:
        number = sock.getsockname()[1]
        yield number
        listeners.leave(number)


def test_addresses_of_this_machine_are_ours(port: int) -> None:
    assert [host for host in HERE_4 if not server_ports.is_ours(v4(host, port))] == []
    assert [host for host in HERE_6 if not server_ports.is_ours(v6(host, port))] == []
    assert server_ports.is_ours(v6("fe80::1", port, scope=77))
    assert server_ports.is_ours(v6("::1", port, scope=77))


def test_other_machines_and_other_ports_are_not(port: int) -> None:
    assert [host for host in ELSEWHERE_4 if server_ports.is_ours(v4(host, port))] == []
    assert [host for host in ELSEWHERE_6 if server_ports.is_ours(v6(host, port))] == []
    other = port - 1
    assert not any(server_ports.is_ours(v4(host, other)) for host in HERE_4)
    assert not any(server_ports.is_ours(v6(host, other)) for host in HERE_6)


def test_an_address_that_is_cut_off_is_ours(port: int) -> None:
    for length in range(4, 8):
        assert server_ports.is_ours(v4("192.0.2.1", port)[:length])
    for length in range(4, 24):
        assert server_ports.is_ours(v6("2001:db8::1", port)[:length])


def test_what_the_kernel_does_not_say_is_ours(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(server_ports.socket, "socket", fail)
    assert server_ports.is_ours(v4("192.0.2.1", port))
    assert server_ports.is_ours(v6("2001:db8::1", port))


_NETWORK = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
from tests.sandbox.syscalls.test_server_ports import v4, v6
from handrail import listeners
from handrail.sandbox.syscalls.server_ports import is_ours
ip = lambda *words: subprocess.run(["ip", *words], check=True)
ip("link", "set", "lo", "up")
ip("addr", "add", "10.1.0.5/32", "dev", "lo")
ip("addr", "add", "fd00::5/128", "dev", "lo", "nodad")
ip("route", "add", "local", "198.51.100.0/24", "dev", "lo")
ip("-6", "route", "add", "local", "2001:db8:7::/64", "dev", "lo")
open("/proc/sys/net/ipv6/bindv6only", "w").write("1")
with listeners.open_tcp("::", 0, 5) as sock:
    port = sock.getsockname()[1]
    ours = [is_ours(v4(a, port)) for a in ("10.1.0.5", "198.51.100.77", "127.0.0.1")]
    ours += [is_ours(v6(a, port)) for a in (
        "fd00::5", "2001:db8:7::77", "::ffff:10.1.0.5", "::ffff:198.51.100.3")]
    theirs = [is_ours(v4("10.1.0.6", port)), is_ours(v6("fd00::6", port))]
print(json.dumps([ours, theirs]))
"""


def test_addresses_that_are_led_here_are_ours() -> None:
    """Addresses besides loopback, and whole networks that the routes send to this machine."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("another network takes root, and ip")
    root = str(Path(__file__).resolve().parents[3])
    words = ["unshare", "-n", sys.executable, "-c", _NETWORK, root]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout.splitlines()[-1])
    assert all(ours), ours
    assert not any(theirs), theirs


OTHER = """
import sys
from pathlib import Path
from handrail import listeners

with listeners.open_tcp("127.0.0.1", 0, 5) as sock:
    print(sock.getsockname()[1], flush=True)
    sys.stdin.read()
    listeners.leave(sock.getsockname()[1])
"""


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_a_listener_of_another_process_of_ours_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its commands run without the sandbox of those that would connect to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    argv = [sys.executable, "-c", OTHER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        try:
            assert server_ports.is_ours(v4("127.0.0.1", port))
            assert server_ports.is_ours(v6("::ffff:127.0.0.1", port))
            assert not server_ports.is_ours(v4("192.0.2.1", port))
            assert not server_ports.is_ours(v4("127.0.0.1", port - 1))
        finally:
            if end == "kill":
                other.kill()
            other.communicate(b"")
    assert not server_ports.is_ours(v4("127.0.0.1", port))
    left = list((tmp_path / "handrail" / "listeners").iterdir())
    assert len(left) == (end == "kill")
    # The next one removes what a killed one left.
    with listeners.open_tcp("127.0.0.1", 0, 5) as sock:
        assert not any(path.exists() for path in left)
        listeners.leave(sock.getsockname()[1])
    assert not list((tmp_path / "handrail" / "listeners").iterdir())
