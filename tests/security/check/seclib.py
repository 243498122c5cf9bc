"""What security_check.py stands on: an own mount and pid namespace with an own /tmp, a copy of the
installed handrail that an ordinary user can run, cases with a bounded time, a small client of the wire and of MCP.

Everything that is started ends with the pid namespace; everything that is written lies in a tmpfs that ends with the mount namespace."""
import argparse, base64, contextlib, json, os, re, shutil, signal, socket, stat, struct, subprocess, sys, tempfile, textwrap, time, traceback, urllib.error, urllib.request

CASES = []
HERE = os.path.dirname(os.path.abspath(__file__))

class Skip(Exception): pass
class Late(BaseException): pass

def case(name, seconds=45, root=False):
    """root: needs to be run as root (two uids, mounts, network namespaces)."""
    def take(f):
        CASES.append((name, f, seconds, root)); return f
    return take

def sh(*words): return subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

class Place:
    """Where the check works: the copy of handrail, and who runs it."""
    def __init__(self, args, base):
        self.args, self.base, self.root = args, base, os.environ.get("HRC_ROOT") == "1"
        self.uid = args.as_user if self.root else os.getuid()
        self.other = 65534 if self.uid != 65534 else 65533
        self.python = f"{base}/venv/bin/python"; self.handrail = f"{base}/venv/bin/handrail"; self.docs = args.docs
        self.site = None
    def install(self):
        given = os.path.abspath(self.args.handrail)
        python = self.args.python
        if not python:
            first = open(given, "rb").readline().decode(errors="replace").strip()
            python = first[2:].split()[0] if first.startswith("#!") else os.path.join(os.path.dirname(given), "python")
        ask = '''
import sys, json, os, re, importlib.metadata as m
def closure(extras):
    todo=[("handrail",set(extras))]; seen={}
    while todo:
        n,x=todo.pop(); k=re.sub(r"[-_.]+","-",n).lower()
        if k in seen: continue
        try: d=m.distribution(n)
        except m.PackageNotFoundError: continue
        seen[k]=d
        for r in d.requires or []:
            name=re.match(r"[A-Za-z0-9._-]+",r).group(); e=re.search(r"extra\\s*==\\s*[\\"']([^\\"']+)",r)
            if e is None or e.group(1) in x: todo.append((name,set(re.findall(r"\\[([^]]*)\\]",r.split(";")[0])[0].split(",")) if "[" in r.split(";")[0] else set()))
    return seen
def tops(ds):
    out=set()
    for k,d in ds.items():
        if k=="handrail": continue
        for f in d.files or []:
            p=f.parts[0]
            if p not in ("..","__pycache__") and not p.endswith(".pth"): out.add(str(d.locate_file(p)))
    return sorted(out)
import handrail
print(json.dumps({"base":getattr(sys,"_base_executable",sys.executable),"prefix":sys.base_prefix,"v":"%d.%d"%sys.version_info[:2],"pkg":os.path.dirname(os.path.abspath(handrail.__file__)),"all":tops(closure({"mcp"})),"few":tops(closure(set())),"info":str(m.distribution("handrail")._path)}))'''
        i = json.loads(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True, cwd="/").stdout)
        base = os.path.realpath(i["base"])
        if self.root and not self._reach(base):
            system = f"/usr/bin/python{i['v']}"
            if os.path.exists(system): base = system
            else:                                      # not for others to read: mounted where they can
                os.mkdir(f"{self.base}/py"); sh("mount", "--bind", i["prefix"], f"{self.base}/py"); base = f"{self.base}/py/" + os.path.relpath(base, os.path.realpath(i["prefix"]))
        self.info, self.base_python = i, base
        self.site = self.make_venv(f"{self.base}/venv", "all")
    def _reach(self, p):
        while p != "/":
            p = os.path.dirname(p)
            if not os.stat(p).st_mode & 1: return False
        return True
    def make_venv(self, where, what="few", owner=None):
        sh(self.base_python, "-m", "venv", "--without-pip", "--symlinks", where)
        site = f"{where}/lib/python{self.info['v']}/site-packages"
        for p in self.info[what]:
            to = os.path.join(site, os.path.basename(p))
            if os.path.isdir(p): shutil.copytree(p, to, dirs_exist_ok=True)
            elif os.path.exists(p): shutil.copy(p, to)
        shutil.copytree(self.info["pkg"], f"{site}/handrail")
        shutil.copytree(self.info["info"], f"{site}/{os.path.basename(self.info['info'])}")
        with open(f"{where}/bin/handrail", "w") as f: f.write(f"#!{where}/bin/python\nimport sys\nfrom handrail.__main__ import main\nsys.exit(main())\n")
        os.chmod(f"{where}/bin/handrail", 0o755)
        if owner: chown(where, owner)
        return site

def chown(top, uid):
    if os.getuid() != 0 or uid == 0: return
    for d, ds, fs in os.walk(top):
        os.chown(d, uid, uid)
        for n in fs + [x for x in ds if os.path.islink(f"{d}/{x}")]: os.lchown(f"{d}/{n}", uid, uid)

class T:
    """One case: its directories, and how things are run in it."""
    def __init__(self, place, name):
        self.p = place; self.uid = place.uid
        self.dir = f"{place.base}/c/{re.sub('[^a-z0-9]+', '-', name.lower())}"
        self.ws, self.out, self.home = (f"{self.dir}/{n}" for n in ("ws", "out", "home"))
        for d in (self.dir, self.ws, self.out, self.home): os.makedirs(d, exist_ok=True); os.chmod(d, 0o755)
        for d in (self.ws, self.out, self.home): chown(d, self.uid)
        self.procs = []
    def env(self, **more):
        e = {"HOME": self.home, "PATH": f"{self.p.base}/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "HR_SITE": self.p.site}
        e.update(more); return {k: v for k, v in e.items() if v is not None}
    def _who(self, uid):
        uid = self.uid if uid is None else uid
        return dict(user=uid, group=uid, extra_groups=[]) if self.p.root and os.getuid() == 0 else {}
    def run(self, *argv, cwd=None, uid=None, seconds=20, env=None, umask=0o022, **kw):
        kw.setdefault("stdin", subprocess.DEVNULL)
        if "input" in kw: kw.pop("stdin")
        p = self.start(*argv, cwd=cwd, uid=uid, env=env, umask=umask, stdout=kw.pop("stdout", subprocess.PIPE), stderr=kw.pop("stderr", subprocess.STDOUT), stdin=subprocess.PIPE if "input" in kw else kw.pop("stdin"))
        try: out, _ = p.communicate(kw.get("input", None), timeout=3 * seconds)  # a busy machine
        except subprocess.TimeoutExpired:
            p.kill(); out, _ = p.communicate(); p.timed = True
        p.text = (out or b"").decode(errors="replace"); return p
    def start(self, *argv, cwd=None, uid=None, env=None, umask=0o022, **kw):
        kw.setdefault("stdin", subprocess.DEVNULL)
        p = subprocess.Popen(argv, cwd=cwd or self.ws, env=self.env(**(env or {})), umask=umask, **self._who(uid), **kw)
        p.timed = False; self.procs.append(p); return p
    def h(self, *words, **kw): return self.run(self.p.handrail, *words, **kw)
    def file(self, path, text, mode=0o644, uid=None):
        path = os.path.join(self.dir, path); os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", newline="") as f: f.write(text)
        os.chmod(path, mode)
        if os.getuid() == 0: os.chown(path, self.uid if uid is None else uid, self.uid if uid is None else uid)
        return path
    def py(self, text, *argv, **kw):
        """A program that embeds handrail, outside the workspace; its last line is JSON."""
        path = self.file("probe.py", textwrap.dedent(text))
        p = self.run(self.p.python, path, *argv, **kw)
        try: return json.loads(p.text.strip().splitlines()[-1])
        except (ValueError, IndexError): raise RuntimeError("probe: " + p.text[-300:].replace("\n", " | ") + (" (timed out)" if p.timed else ""))
    def wait_for(self, test, seconds=8):
        end = time.time() + seconds
        while time.time() < end:
            r = test()
            if r: return r
            time.sleep(0.05)
        return None
    def serve(self, *words, uid=None, env=None, umask=0o022, cwd="/"):
        out = f"{self.dir}/url-{len(self.procs)}"; f = open(out, "w"); e = open(out + ".err", "w")
        p = self.start(self.p.handrail, "serve", *words, uid=uid, env=env, umask=umask, cwd=cwd, stdout=f, stderr=e)
        url = self.wait_for(lambda: (open(out).read().split() or [None])[0] or (p.poll() is not None and "x"), 60)
        if not url or url == "x": raise RuntimeError("serve did not start: " + open(out + ".err").read()[-200:])
        p.url = url; return p
    def mcp_http(self, *words, uid=None, env=None, port=None):
        port = port or free_port(); out = f"{self.dir}/mcp-{len(self.procs)}"; f = open(out, "w")
        p = self.start(self.p.handrail, "mcp", "--cwd", self.ws, "--http", f"127.0.0.1:{port}", *words, uid=uid, env=env, cwd="/", stdout=f, stderr=subprocess.STDOUT)
        def up():
            if p.poll() is not None: return True
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1): return True
        self.wait_for(up, 60); p.port, p.log = port, out; p.url = f"http://127.0.0.1:{port}/mcp"; return p
    def end(self):
        for p in self.procs:
            if p.poll() is None: p.terminate()
        time.sleep(0.1 if self.procs else 0)
        self.sweep()
        for p in self.procs:
            with contextlib.suppress(Exception):
                if p.poll() is None: p.kill()
                p.wait(3)
        for n in os.listdir("/tmp"):                       # our own tmpfs
            q = f"/tmp/{n}"; shutil.rmtree(q, ignore_errors=True) if os.path.isdir(q) and not os.path.islink(q) else os.unlink(q)
        for n in os.listdir("/var/tmp"): shutil.rmtree(f"/var/tmp/{n}", ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)
    def sweep(self):
        """End all processes of our own pid namespace but this one and its first."""
        for _ in range(3):
            left = [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) not in (1, os.getpid())]
            left = [n for n in left if not _zombie(n)]
            if not left: return
            for n in left:
                with contextlib.suppress(OSError): os.kill(n, signal.SIGKILL)
            time.sleep(0.15)

def _zombie(n):
    try: return open(f"/proc/{n}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError: return True

def free_port(host="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s: s.bind((host, 0)); return s.getsockname()[1]

def read(path):
    try: return open(path, errors="replace").read()
    except OSError: return None

def head_line(text, n=190): return " | ".join(x for x in str(text).split("\n") if x.strip())[:n]
def one_line(text, n=150): return " | ".join(x for x in str(text).split("\n") if x.strip())[-n:]

# --- the wire ---------------------------------------------------------------------------------------------------------------------
class WS:
    """RFC 6455, as much as a test needs."""
    def __init__(self, host, port, headers=(), timeout=20, sock=None):
        self.s = sock or socket.create_connection((host, port), timeout); self.s.settimeout(timeout)
        h = f"[{host}]" if ":" in host else host
        self.s.sendall((f"GET / HTTP/1.1\r\nHost: {h}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers) + "\r\n").encode())
        self.b = b""
        while b"\r\n\r\n" not in self.b: self._more()
        head, self.b = self.b.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]: raise ConnectionError(head.split(b"\r\n")[0].decode())
    def _more(self):
        d = self.s.recv(1 << 16)
        if not d: raise ConnectionError("closed")
        self.b += d
    def _take(self, n):
        while len(self.b) < n: self._more()
        r, self.b = self.b[:n], self.b[n:]; return r
    @staticmethod
    def frame(text, op=1):
        d = text.encode() if isinstance(text, str) else text; m = os.urandom(4)
        n = len(d); h = bytes([0x80 | op]) + (bytes([0x80 | n]) if n < 126 else b"\xfe" + struct.pack(">H", n) if n < 65536 else b"\xff" + struct.pack(">Q", n))
        return h + m + bytes(c ^ m[i & 3] for i, c in enumerate(d))
    def send(self, text): self.s.sendall(self.frame(text))
    def recv(self):
        whole = b""
        while True:
            a, b = self._take(2); n = b & 127
            if n == 126: n = struct.unpack(">H", self._take(2))[0]
            elif n == 127: n = struct.unpack(">Q", self._take(8))[0]
            d = self._take(n); op = a & 15
            if op == 8: raise ConnectionError("closed")
            if op == 9: self.s.sendall(self.frame(d, 10)); continue
            if op == 10: continue
            whole += d
            if a & 0x80: return whole.decode()

class Wire:
    def __init__(self, url, headers=()):
        m = re.match(r"ws://(\[[^]]*\]|[^:/]+):(\d+)", url); host = m.group(1).strip("[]")
        self.s = WS({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(m.group(2)), headers); self.n = 0
        self.call("initialize", {"clientName": "check"}); self.s.send(json.dumps({"method": "initialized", "params": {}}))
    def call(self, method, params):
        self.n += 1; i = self.n; self.s.send(json.dumps({"id": i, "method": method, "params": params}))
        while True:
            m = json.loads(self.s.recv())
            if m.get("id") == i and "method" not in m: return m
    def start(self, argv, cwd="/", env=None, sandbox=None, pid=None, **kw):
        p = {"processId": pid or f"p{self.n}", "argv": list(argv), "cwd": "file://" + cwd, "env": env or {"PATH": "/usr/bin:/bin"}, "tty": False, "pipeStdin": False, "arg0": None, **kw}
        if sandbox is not None: p["sandbox"] = sandbox
        return p["processId"], self.call("process/start", p)
    def run(self, argv, wait=20, **kw):
        pid, a = self.start(argv, **kw)
        if "error" in a: return None, str(a["error"].get("message", a["error"]))
        out, after, t = b"", 0, time.time()
        while time.time() - t < wait:
            r = self.call("process/read", {"processId": pid, "afterSeq": after, "maxBytes": 1 << 20, "waitMs": 500}).get("result") or {}
            for c in r.get("chunks", []): after = c["seq"]; out += base64.b64decode(c["chunk"])
            if r.get("closed"): return r.get("exitCode"), out.decode(errors="replace")
        return None, out.decode(errors="replace") + " (timed out)"

def special(kind, access): return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}
def entry(path, access): return {"path": {"type": "path", "path": "file://" + path}, "access": access}
def permissions(*entries, network=False): return {"type": "managed", "file_system": {"type": "restricted", "entries": list(entries)}, "network": "enabled" if network else "restricted"}
def profile(ws, network=False, tmp=False, more=()):
    e = [special("root", "read"), special("project_roots", "write"), *([special("slash_tmp", "write")] if tmp else []), *more]
    return {"permissions": permissions(*e, network=network), "cwd": "file://" + ws, "workspaceRoots": ["file://" + ws], "windowsSandboxLevel": "disabled"}

# --- MCP --------------------------------------------------------------------------------------------------------------------------
class Mcp:
    """A host on stdio; ``answer`` is what it says to questions (None: it has no elicitation)."""
    def __init__(self, t, *words, answer=None, env=None, cwd=None):
        self.p = t.start(t.p.handrail, "mcp", "--cwd", cwd or t.ws, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(f"{t.dir}/mcp.err", "w"), cwd="/", env=env)
        self.n, self.answer, self.asked = 0, answer, []
        self.call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}} if answer else {}, "clientInfo": {"name": "check", "version": "1"}})
        self._send({"method": "notifications/initialized"})
    def _send(self, m): self.p.stdin.write(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n"); self.p.stdin.flush()
    def call(self, method, params):
        self.n += 1; i = self.n; self._send({"id": i, "method": method, "params": params})
        while True:
            line = self.p.stdout.readline()
            if not line: raise RuntimeError("the MCP server is gone")
            m = json.loads(line)
            if m.get("method") == "elicitation/create":
                self.asked.append(m["params"]); self._send({"id": m["id"], "result": {"action": "accept", "content": {"decision": self.answer}}})
            elif m.get("id") == i and "method" not in m: return m
    def tool(self, name, **arguments):
        r = self.call("tools/call", {"name": name, "arguments": arguments}).get("result", {})
        return "\n".join(c.get("text", "") for c in r.get("content", []))

class McpHttp:
    def __init__(self, url, token=None, elicit=False):
        self.url = url; self.h = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **({"Authorization": "Bearer " + token} if token else {})}
        r = self.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}} if elicit else {}, "clientInfo": {"name": "check", "version": "1"}}})
        self.h["mcp-protocol-version"] = "2025-06-18"; sid = r.headers.get("mcp-session-id"); r.read()
        if sid: self.h["mcp-session-id"] = sid
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).read()
    def post(self, body): return urllib.request.urlopen(urllib.request.Request(self.url, json.dumps(body).encode(), self.h), timeout=30)
    def tool(self, name, **arguments):
        r = self.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
        for line in r:
            line = line.decode().strip()
            if line.startswith("data:") and len(line) > 8: line = line[5:].strip()
            if not line.startswith("{"): continue
            m = json.loads(line)
            if m.get("id") == 2: return json.dumps(m.get("result", m))
        return ""

#: A host that comes from inside: it calls, and answers the question itself.  argv: URL TOKENFILE|- COMMAND
MCP_INSIDE = r'''
import json, sys, urllib.request
url, tf, cmd = sys.argv[1:4]
H = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
if tf != "-":
    try: H["Authorization"] = "Bearer " + open(tf).read().strip(); print("token read")
    except OSError as e: print("token:", e)
def post(b, x={}): return urllib.request.urlopen(urllib.request.Request(url, json.dumps(b).encode(), {**H, **x}), timeout=12)
try:
    r = post({"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"x","version":"1"}}})
    S = {"mcp-session-id": r.headers.get("mcp-session-id") or "", "mcp-protocol-version": "2025-06-18"}; r.read(); print("REACHED")
    post({"jsonrpc":"2.0","method":"notifications/initialized"}, S).read()
    for l in post({"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec_command","arguments":{"cmd":cmd,"sandbox_permissions":"require_escalated","justification":"x"}}}, S):
        l = l.decode().strip()
        if not l.startswith("data:") or len(l) < 8: continue
        m = json.loads(l[5:])
        if m.get("method") == "elicitation/create": post({"jsonrpc":"2.0","id":m["id"],"result":{"action":"accept","content":{"decision":"approved"}}}, S).read()
        elif m.get("id") == 2: print("done"); break
except Exception as e: print("held:", e)
'''

# --- forbidden programs: the scripts of M7 -------------------------------------------------------------------------------------------
def scripts(path):
    """[(group, script, set-up)]: a Python list of tuples."""
    import ast
    return [(g, s, u) for g, s, u in ast.literal_eval(open(path).read())]

def zap_place(t):
    """WS/w is the workspace, the program lies beside it and leaves its mark in the workspace."""
    d = f"{t.dir}/z"; w = f"{d}/w"; b = f"{d}/bin"
    for x in (d, b, w): os.makedirs(x, exist_ok=True)
    t.file("z/bin/zap", f'#!/bin/sh\necho "$0 $*" >> {w}/.ran\n', 0o755); t.file("z/rules", 'prefix_rule(["zap"], "forbidden")\n'); chown(d, t.uid)
    return d, b, w

def clean(t, w):
    for n in os.listdir(w):
        q = f"{w}/{n}"; shutil.rmtree(q, ignore_errors=True) if os.path.isdir(q) and not os.path.islink(q) else os.unlink(q)

def zap_env(t, b): return {"PATH": f"{b}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": t.home, "GIT_CONFIG_NOSYSTEM": "1", "TERM": "dumb"}

def really_runs(t, script, setup, seconds=4):
    """Whether bash really runs the program by this script here; without a network of the host."""
    d, b, w = zap_place(t); clean(t, w); e = zap_env(t, b)
    if setup: t.run("bash", "-c", setup, cwd=w, env=e, seconds=10)
    no_net = ["unshare", "-n", "--"] if t.p.root else ["unshare", "-Urn", "--"]
    who = ["setpriv", f"--reuid={t.uid}", f"--regid={t.uid}", "--clear-groups", "--"] if t.p.root else []
    p = subprocess.Popen([*no_net, *who, "/bin/bash", "-c", script], cwd=w, env=t.env(**e), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try: p.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL); p.wait()
    return os.path.exists(f"{w}/.ran")

def guard(t, wanted, verbose):
    """Scripts that really run it, judged by `handrail policy check`: [those allowed], number that ran."""
    d, b, w = zap_place(t); evaded, ran = [], 0
    for group, script, setup in wanted:
        if not really_runs(t, script, setup): continue
        ran += 1
        rc = t.h("policy", "check", "--rules", f"{d}/rules", "--shell", "--explain", "--", script, cwd=w).returncode
        if rc == 0: evaded.append(script)
        elif rc not in (3, 4): evaded.append(f"exit {rc}: {script}")
    if verbose:
        for s in evaded: print("      allowed:", repr(s))
    return evaded, ran

ZAP_DRIVER = r'''
import asyncio, json, os, shutil, subprocess, sys
from handrail import AgentShell
def _get(name):  # wherever it lives: exported by the package, or in one of its modules
    import importlib, pkgutil, handrail
    if hasattr(handrail, name): return getattr(handrail, name)
    for k in ("orchestrator", "policy", "agent", "approvals", "mcp_server"):
        try: p = importlib.import_module("handrail." + k)
        except ImportError: continue
        if hasattr(p, name): return getattr(p, name)
        for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".") if hasattr(p, "__path__") else ():
            try: x = importlib.import_module(m.name)
            except ImportError: continue
            if hasattr(x, name): return getattr(x, name)
    raise ImportError(name)
Answer, Choice = _get('Answer'), _get('Choice')
parse_rules = _get('parse_rules')
w, listed, policy, rules = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3], open(sys.argv[4]).read()
class A:
    n = 0
    async def ask(self, q): A.n += 1; return Answer(Choice.DENY)
async def main():
    out = []
    for script, setup in listed:
        for n in os.listdir(w):
            q = w + "/" + n
            shutil.rmtree(q, ignore_errors=True) if os.path.isdir(q) and not os.path.islink(q) else os.unlink(q)
        if setup: subprocess.run(["bash", "-c", setup], cwd=w, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if os.path.exists(w + "/.ran"): os.unlink(w + "/.ran")
        A.n = 0
        async with AgentShell(w, approver=A() if policy != "never" else None, policy=policy, sandbox="workspace-write", rules=parse_rules(rules, "r")) as s:
            try: r = (await asyncio.wait_for(s.call("exec_command", {"cmd": script, "yield_time_ms": 2500}), 8)).text
            except Exception as e: r = repr(e)
        out.append({"script": script, "ran": os.path.exists(w + "/.ran"), "asked": A.n, "text": r[-200:]})
    print(json.dumps(out))
asyncio.run(main())
'''

def in_sandbox(t, wanted, policy="on-request", rules=None, seconds=400):
    """The same through AgentShell with its sandbox: what ran, and how often somebody was asked."""
    d, b, w = zap_place(t); l = t.file("z/list.json", json.dumps([[s, u] for s, u in wanted]))
    r = t.file("z/rules2", rules or 'prefix_rule(["zap"], "forbidden")\n')
    return t.py(ZAP_DRIVER, w, l, policy, r, env=zap_env(t, b), cwd="/", seconds=seconds)

# --- the programme ----------------------------------------------------------------------------------------------------------------
def main(doc):
    ap = argparse.ArgumentParser(description=doc)
    ap.add_argument("--handrail", required=True); ap.add_argument("--python"); ap.add_argument("--only", default=""); ap.add_argument("--skip", default="")
    ap.add_argument("--as-user", type=int, default=1000); ap.add_argument("--docs"); ap.add_argument("-v", action="store_true"); ap.add_argument("--list", action="store_true")
    args = ap.parse_args()
    if args.docs: args.docs = os.path.abspath(args.docs)
    if args.list:
        for name, *_ in CASES: print(name)
        return 0
    base = os.environ.get("HRC_BASE")
    if base is None:                              # outside: make the place, go into namespaces of our own, take the place away
        root = os.getuid() == 0
        if not root: print("run this as root: it makes namespaces of its own and runs handrail as --as-user (default 1000)", file=sys.stderr); return 2
        base = tempfile.mkdtemp(prefix="hrc-", dir="/var/lib" if root else os.path.expanduser("~")); os.chmod(base, 0o755)
        words = ["unshare", *([] if root else ["-Ur"]), "-m", "--propagation", "private", "-p", "-f", "--kill-child", "--mount-proc", sys.executable, "-I", os.path.abspath(sys.argv[0])]
        a = [x if x != args.handrail else os.path.abspath(x) for x in sys.argv[1:]]
        p = subprocess.Popen([*words, *a], env={**os.environ, "HRC_BASE": base, "HRC_ROOT": "1" if root else "0"}, cwd="/" if os.path.isabs(args.python or "/") and not args.docs else None)
        try: return p.wait()
        except KeyboardInterrupt: p.kill(); return 130
        finally: shutil.rmtree(base, ignore_errors=True)
    os.umask(0o022)
    sh("mount", "-t", "tmpfs", "-o", "mode=755,size=1500m", "none", base)
    for k in list(os.environ):
        if k.startswith(("HANDRAIL", "XDG_", "PYTHON")): del os.environ[k]
    place = Place(args, base); place.install()
    for d in ("/tmp", "/var/tmp"): sh("mount", "-t", "tmpfs", "-o", "mode=1777,size=600m", "none", d)
    if place.root: sh("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run")
    os.chdir("/")
    only = [x for x in args.only.split(",") if x]; skip = [x for x in args.skip.split(",") if x]
    hit = lambda name, xs: any(name == x or name.startswith(x + ".") for x in xs)
    tally = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    def late(*_): raise Late()
    signal.signal(signal.SIGALRM, late)
    for name, f, seconds, needs_root in CASES:
        if only and not hit(name, only) or hit(name, skip): continue
        t = T(place, name); began = time.time()
        try:
            if needs_root and not place.root: raise Skip("needs root")
            signal.alarm(seconds)
            try: ok, why = f(t)
            finally: signal.alarm(0)
            verdict = "PASS" if ok else "FAIL"
        except Skip as e: verdict, why = "SKIP", str(e)
        except Late: verdict, why = "FAIL", f"not done after {seconds} s"
        except Exception as e:
            verdict, why = "FAIL", f"{type(e).__name__}: {one_line(e, 200)}"
            if args.v: traceback.print_exc()
        tally[verdict] += 1
        print(f"{verdict} {name:24} {head_line(why)}" + (f"  [{time.time() - began:.1f} s]" if args.v else ""), flush=True)
        try: t.end()
        except Exception as e: print("      (cleaning up:", e, ")")
    print(f"{tally['PASS']} passed, {tally['FAIL']} failed, {tally['SKIP']} skipped")
    return 1 if tally["FAIL"] else 0
