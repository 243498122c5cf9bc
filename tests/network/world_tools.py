"""Run real tools in the managed network of a workspace, in a private world.

``world_tools.py NODE TOOL...``; NODE is a node whose fetch uses proxies, or empty.  Prints one JSON
object for each tool: what it said of a listed host and then of one that is on no list, and what the
result lists as refused.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handrail import Managed, Workspace
from tests.network import world
from tests.network.tool_servers import (
    ASKED_EVENTS,
    EVENTS,
    SILENCES,
    SSH_PORT,
    WEBSOCKET_PORT,
    ToolServers,
    find,
)
from tests.support.processes import children, command_line, kilobytes
from tests.system.survival import PERIOD

LISTED, UNLISTED = "tools.example", "refused.example"
#: A gibibyte and a little.
UPLOAD = 1025 * len(PERIOD)
_PYTHON = shlex.quote(sys.executable)

_JAVA = """
import java.io.*; import java.net.*; import java.net.http.*; import java.security.*;
import java.security.cert.*; import javax.net.ssl.*;
public class Get {
    public static void main(String[] words) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (InputStream file = new FileInputStream(System.getenv("SSL_CERT_FILE"))) {
            store.setCertificateEntry(
                "world", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust =
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        HttpClient client = HttpClient.newBuilder().sslContext(context).build();
        for (String word : words) {
            try {
                HttpRequest request = HttpRequest.newBuilder(URI.create(word + "/page")).build();
                System.out.println(
                    client.send(request, HttpResponse.BodyHandlers.ofString()).body());
            } catch (IOException error) {
                System.out.println("refused: " + error.getMessage());
            }
        }
    }
}
"""
_EVENTS = f"""
import sys, urllib.request
def get(path):
    return urllib.request.urlopen(sys.argv[1] + path, timeout=60)
get("/next-event").read()
lines = get("/events")
for number in range({EVENTS}):
    assert lines.readline() == b"data: %d\\n" % number, number
    assert lines.readline() == b"\\n"
    if number + 1 < {ASKED_EVENTS}:
        get("/next-event").read()
assert not lines.read()
print("events", number + 1)
"""
_WEBSOCKET = """
import os, ssl, sys
from websockets.sync.client import connect
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
with connect(sys.argv[1], ssl=context, max_size=None) as line:
    for size in (1, 65536, 4 << 20):
        line.send(bytes(size))
        assert line.recv() == bytes(size)
    for number in range(500):
        line.send(str(number))
        assert line.recv() == str(number)
print("echoed")
"""
_REQUESTS = "import requests as r, sys; print(r.get(sys.argv[1] + '/page', timeout=60).text)"
_HTTPX = """
import httpx, os, ssl, sys
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
print(httpx.get(sys.argv[1] + "/page", verify=context, timeout=60).text)
"""
_FETCH = "const r = await fetch(process.argv[2] + '/page'); console.log(await r.text())"
_PERIODS = "import sys; d = open('period', 'rb').read(); [sys.stdout.buffer.write(d) for _ in {}]"


@dataclass(frozen=True)
class Tool:
    """A script that fetches from ``$URL``, and what it prints when it has."""

    script: str
    wanted: str
    #: Why it cannot be run here.
    missing: str | None = None
    scheme: str = "https"
    #: Whether it is run for the host that is on no list.
    again: bool = True


def needs(*names: str) -> str | None:
    missing = [name for name in names if find(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else None


def _git_by_ssh(servers: ToolServers) -> Tool:
    keys = servers.keys
    options = f"-F none -i {keys}/user -o UserKnownHostsFile={keys}/known -o IdentitiesOnly=yes"
    user = pwd.getpwuid(os.getuid()).pw_name
    return Tool(
        f'GIT_SSH_COMMAND="$GIT_SSH_COMMAND {options}" git clone -q'
        f" ssh://{user}@$HOST:{SSH_PORT}{servers.repository} $HOST-ssh"
        " && git -C $HOST-ssh log --format=%s",
        "first",
        needs("git", "ssh", "sshd", "ssh-keygen"),
    )


def _pip() -> str:
    words = "-q --disable-pip-version-check --no-deps --retries 0 --isolated --target $HOST-pip"
    return f"{_PYTHON} -m pip install {words} --cert $SSL_CERT_FILE --index-url $URL/simple/ tiny"


_NPM = (
    "mkdir $HOST-npm && cd $HOST-npm && npm install --silent --no-audit --no-fund --fetch-retries=0"
    " --update-notifier=false --cafile=$SSL_CERT_FILE --registry=$URL/ tiny"
)


def tools(servers: ToolServers, node: str) -> dict[str, Tool]:
    """All of them, by name."""
    return {
        "curl": Tool("curl -sSf $URL/page", "PAGE", needs("curl")),
        "curl-plain": Tool("curl -sSf $URL/page", "PAGE", needs("curl"), scheme="http"),
        "curl-socks": Tool("curl -sSf --proxy $ALL_PROXY $URL/page", "PAGE", needs("curl")),
        "wget": Tool(
            "wget -q -t 1 --ca-certificate=$SSL_CERT_FILE -O - $URL/page", "PAGE", needs("wget")
        ),
        "git": Tool(
            "git clone -q $URL/repo.git $HOST && git -C $HOST log --format=%s",
            "first",
            needs("git"),
        ),
        "git-ssh": _git_by_ssh(servers),
        "pip": Tool(_pip() + " && cat $HOST-pip/tiny.py", "x = 1"),
        "npm": Tool(_NPM + " && cat node_modules/tiny/*.js", "= 1", needs("npm")),
        "node-fetch": Tool(f"{shlex.quote(node)} get.mjs $URL", "PAGE"),
        "requests": Tool(f"{_PYTHON} -c {shlex.quote(_REQUESTS)} $URL", "PAGE"),
        "httpx": Tool(f"{_PYTHON} -c {shlex.quote(_HTTPX)} $URL", "PAGE"),
        "java": Tool("java Get.java $URL $OTHER_URL", "PAGE", needs("java"), again=False),
        "event-stream": Tool(f"{_PYTHON} events.py $URL", f"events {EVENTS}", scheme="http"),
        "slow-events": Tool(
            "curl -sSfN $URL/slow-events && echo ended",
            f"data: {len(SILENCES) - 1}\n\nended",
            needs("curl"),
            scheme="http",
            again=False,
        ),
        "websocket": Tool(f"{_PYTHON} echo.py wss://$HOST:{WEBSOCKET_PORT}/", "echoed"),
        "upload": Tool(
            f"{_PYTHON} -c {shlex.quote(_PERIODS.format('range(1025)'))} | curl -sSf -T - $URL/x",
            str(UPLOAD),
            needs("curl"),
            scheme="http",
            again=False,
        ),
    }


def run(ws: Workspace, name: str, tool: Tool) -> dict[str, Any]:
    """Both hosts in one command, the listed one first."""
    if tool.missing is not None:
        return {"name": name, "missing": tool.missing}
    urls = {host: f"{tool.scheme}://{host}" for host in (LISTED, UNLISTED)}

    def script(host: str) -> str:
        return (
            f"(HOST={host} URL={urls[host]} OTHER_URL={urls[UNLISTED]}; export HOST; {tool.script})"
        )

    once = f"{script(LISTED)}; echo code $?"
    again = f"{script(UNLISTED)} > refused-{name} 2>&1; echo refused $?" if tool.again else ""
    done = ws.run(f"{once}; {again}", timeout=240)
    return {
        "name": name,
        "wanted": tool.wanted,
        "out": done.stdout,
        "err": done.stderr,
        "denied": sorted({(one.host, one.port) for one in done.denials}),
        "text": str(done),
    }


def furnish(work: Path) -> None:
    (work / "Get.java").write_text(_JAVA)
    (work / "events.py").write_text(_EVENTS)
    (work / "echo.py").write_text(_WEBSOCKET)
    (work / "get.mjs").write_text(_FETCH)
    (work / "period").write_bytes(PERIOD)


def porters(pid: int) -> list[int]:
    """The porters below a process."""
    below = children(pid)
    found = [one for one in below if "network/porter/__main__.py" in command_line(one)]
    return found + [one for child in below for one in porters(child)]


def main(node: str, names: list[str]) -> None:
    base = Path(tempfile.mkdtemp(prefix="handrail-tools-", dir="/var/tmp"))
    work = base / "work"
    work.mkdir()
    furnish(work)
    servers = ToolServers(base, work / "keys")
    around = world.World(base, servers.serve)
    certificate = shutil.copy(base / "cert.pem", work)
    trust = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")
    env = {**dict.fromkeys(trust, certificate), "HOME": str(work), "LC_ALL": "C"}
    env["CURL_CA_BUNDLE"] = certificate
    known = tools(servers, node)
    try:
        with Workspace(work, network=Managed(allow=[LISTED]), env=env) as ws:
            with ThreadPoolExecutor(3) as pool:
                running = [pool.submit(run, ws, name, known[name]) for name in names]
                for done in as_completed(running):
                    print(json.dumps(done.result()), flush=True)
            (porter,) = porters(os.getpid())
            peak = {"name": "porter", "kilobytes": kilobytes(porter, "VmHWM")}
            print(json.dumps(peak), flush=True)
    finally:
        around.close()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    world.enter()
    main(sys.argv[1], sys.argv[2:])
