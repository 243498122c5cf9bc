"""Many small attacks in one sandbox: each line of ``probes.txt`` is tried by itself.

One command tries all of them, for each user, in a sandbox that waited for it and in one made for
it, with the network off, managed and open.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail.sandbox.bwrap.arguments import PROC_COVERED
from tests.sandbox.arena import Case, Room, Wire, users

LINES = Path(__file__).with_name("probes.txt").read_text().splitlines()
PROBES = [line.split(None, 1) for line in LINES if not line.startswith("#")]
#: Tries them and prints which of them have worked, or are no attacks at all.
PROGRAM = """
import ctypes, fcntl, json, mmap, os, socket, struct, subprocess, sys
FIRST_FDS = [int(n) for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)]
libc = ctypes.CDLL(None, use_errno=True)
WS, OUT, HOME, NAME, SOCKET = (os.environ[n] for n in ("WS", "OUT", "OURS", "NAME", "SOCKET"))
PORT, OWN = int(os.environ["HOST_PORT"]), int(os.environ["OWN"])
HEAD = b"GET /readyz HTTP/1.0\\r\\n\\r\\n"
path = lambda name: WS + "/" + name
data = ctypes.c_char_p
text = lambda word: data(word.encode())
bits = lambda name="target": os.stat(path(name)).st_mode & 0o6000
def target():
    open(path("target"), "w").close()
    os.chmod(path("target"), 0o755)
    return path("target")
def call(number, *args):
    got = libc.syscall(*[a if isinstance(a, data) else ctypes.c_long(a) for a in (number, *args)])
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got
def sock(*words):
    made = socket.socket(*words)
    made.settimeout(10)
    return made
def hears(made, address=None):
    if address:
        made.connect(address)
    made.sendall(HEAD)
    return made.recv(9)
worked = {}
for name, probe in json.load(open(sys.argv[1])):
    try:
        got = eval(probe)
    except OSError:
        continue
    except Exception as error:
        worked[name] = repr(error)
        continue
    if got[-1] if isinstance(got, tuple) else got:
        worked[name] = repr(got)
print(json.dumps(worked))
"""
#: Prints what a command is born with.
FACTS = """
import json, os, resource, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = "NoNewPrivs Seccomp Seccomp_filters CapInh CapPrm CapEff CapBnd CapAmb"
names += " SigBlk SigIgn SigCgt Umask Groups"
# 32 and 33 are the C library's own: ignored or not by how the parent was started.
status["SigIgn"] = int(status["SigIgn"], 16) & ~(3 << 31)
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    **{name: status.get(name) for name in names.split()},
    "limits": [resource.getrlimit(n) for n in range(16) if n != 10],
    "leader": [os.getpid() == os.getsid(0), os.getppid()], "nice": os.nice(0), "cwd": os.getcwd(),
    "env": dict(os.environ), "descriptors": sorted(os.listdir("/proc/self/fd")),
    "mounts": sorted((mount[4], ",".join(sorted(mount[5].split(",")))) for mount in mounts),
    "affinity": len(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0),
}))
"""


def _entry(path: str, access: str = "write") -> dict[str, Any]:
    return {"path": {"type": "path", "path": f"file://{path}"}, "access": access}


def _case(home: str, network: str) -> Case:
    kinds = {"root": "read", "project_roots": "write", "slash_tmp": "write"}
    entries = [
        {"path": {"type": "special", "value": {"kind": kind}}, "access": access}
        for kind, access in kinds.items()
    ]
    files = {"type": "restricted", "entries": [*entries, _entry("/var/tmp"), _entry(home)]}
    allowed = "enabled" if network == "open" else "restricted"
    case: Case = {
        "name": "probes",
        "profile": {"type": "managed", "file_system": files, "network": allowed},
        "env": {"OURS": home},
    }
    if network == "managed":
        case["domains"] = {"ok.example": "allow"}
    return case


@contextmanager
def _host_sockets(room: Room) -> Iterator[dict[str, str]]:
    """What listens on the host: a port, an abstract name and a path, each with its datagrams."""
    with ExitStack() as stack:
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        name = f"handrail-{room.here}"
        for kind, ending in ((socket.SOCK_STREAM, ""), (socket.SOCK_DGRAM, "d")):
            for address in (f"\0{name}{ending}", f"{room.here}/socket{ending}"):
                one = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
                one.bind(address)
                if not ending:
                    one.listen()
                if address[0] == "/":
                    Path(address).chmod(0o777)
        yield {
            "HOST_PORT": str(port.getsockname()[1]),
            "NAME": name,
            "SOCKET": f"{room.here}/socket",
        }


@pytest.mark.parametrize("network", ["off", "managed", "open"])
@pytest.mark.parametrize("warm", ["on", "off"])
@pytest.mark.parametrize("uid", users(), ids=lambda uid: "root" if uid == 0 else "user")
def test_no_probe_works(
    uid: int, warm: str, network: str, base: str, wires: dict[tuple[int, str], Wire]
) -> None:
    wire = wires[uid, warm]
    # With an open network the machine's own ports are as reachable as for any program.
    reachable = ("n-udp", "n-host-port") if network == "open" else ()
    probes = [one for one in PROBES if not one[0].startswith(reachable)] if reachable else PROBES
    case = _case(wire.home, network)
    with Room(case, base, uid) as room, _host_sockets(room) as names:
        case["env"] |= {**names, "OWN": wire.port}
        for file, text in (("program.py", PROGRAM), ("probes.json", json.dumps(probes))):
            Path(room.here, file).write_text(text)
        case["argv"] = ["python3", "-I", f"{room.here}/program.py", f"{room.here}/probes.json"]
        output, code, said = wire.run(room)
    assert code == 0, said
    assert json.loads(output) == {}


def shown(mounts: list[list[str]]) -> dict[str, str]:
    """What is on top at each place; a copy differs in what covers parts of /proc, and in what is
    below its own /dev (docs/decisions/0028)."""
    top = {path: options for path, options in mounts if path != "/dev/shm"}
    for path in map(os.fsdecode, PROC_COVERED & set(map(os.fsencode, top))):
        top[path] = ""
    return top


@pytest.mark.parametrize("uid", users(), ids=lambda uid: "root" if uid == 0 else "user")
def test_a_command_of_a_waiting_sandbox_has_what_others_have(
    uid: int, base: str, wires: dict[tuple[int, str], Wire]
) -> None:
    case = _case(wires[uid, "on"].home, "off")
    with Room(case, base, uid) as room:
        Path(room.here, "facts.py").write_text(FACTS)
        case["argv"] = ["python3", "-I", f"{room.here}/facts.py"]
        # Twice: the first one may have been made for it.
        found = [wires[uid, warm].run(room) for warm in ("on", "on", "off")]
    assert [code for _, code, _ in found] == [0, 0, 0], found
    first, waited, made = (json.loads(output) for output, _, _ in found)
    # The private places of two servers are different ones; those of other servers come and go.
    for one in (first, waited, made):
        places = ("/tmp", "/var/tmp", "/root", "/home", "/run")
        found_there = [mount for mount in one["mounts"] if not mount[0].startswith(places)]
        one["mounts"] = shown(found_there)
    assert waited == made
    assert first == made
