"""Runs an IPython kernel for a Python session and speaks JSON lines on its pipes.

A program of its own: its text is given to the interpreter of the session's machine, so that it
imports nothing of this package.  The kernel's Unix sockets and settings are in a directory of its
own among the temporary files, in a sandbox in its private /tmp, and never where a command in a
sandbox can write and the kernel is in none.  SIGTERM ends the kernel and removes it.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
from typing import Any

#: How often the kernel's life is looked at while nothing is heard of it, in seconds.
_LOOK_SECONDS = 1.0
#: Run in the kernel first.  ipykernel reads what children write in a thread, and does not wait for
#: that when code ends.  Here all that is in the pipe then is read before the result is sent.
_READ_CHILDREN = """
import codecs, fcntl, os, select, sys, termios, threading

def capture(stream, fd):
    stream._should_watch = False  # by the thread of ipykernel, for which nothing is left
    source, write_end = os.pipe()
    os.dup2(write_end, fd)
    os.close(write_end)
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    lock = threading.Lock()

    def take(size):
        text = decode(os.read(source, size))
        if text:
            stream.write(text)

    def there():
        return int.from_bytes(fcntl.ioctl(source, termios.FIONREAD, bytes(4)), sys.byteorder)

    def take_now():
        with lock:
            size = there()
            if size:
                take(size)

    def watch():
        readable = select.poll()
        readable.register(source, select.POLLIN)
        while readable.poll()[0][1] & select.POLLIN:  # not when code has closed the stream
            take_now()

    threading.Thread(target=watch, daemon=True).start()
    get_ipython().events.register("post_execute", take_now)

capture(sys.stdout, 1)
capture(sys.stderr, 2)
"""
_saying = threading.Lock()


def say(**event: object) -> None:
    """Write one event."""
    data = json.dumps(event).encode() + b"\n"
    with _saying:
        while data:
            data = data[os.write(1, data) :]


def main() -> None:
    """Start the kernel, then run what is asked until stdin ends."""
    try:
        import ipykernel  # noqa: F401 (the kernel imports it)
        from jupyter_client.manager import KernelManager
    except ImportError as error:
        say(event="missing", text=str(error), python=sys.executable)
        return
    signal.signal(signal.SIGTERM, leave)
    place = tempfile.mkdtemp(prefix="handrail-py-")
    os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = place
    try:
        manager = KernelManager(
            transport="ipc", ip=f"{place}/s", connection_file=f"{place}/kernel.json"
        )
        nothing = os.open(os.devnull, os.O_RDWR)
        manager.start_kernel(
            stdout=nothing, stderr=nothing, extra_arguments=["--HistoryManager.enabled=False"]
        )
        try:
            serve(manager)
        finally:
            manager.shutdown_kernel(now=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def leave(*_: object) -> None:
    """Exit, once: what follows is not to be interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def serve(manager: Any) -> None:
    """Run one piece of code after the other."""
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    code = f"exec({_READ_CHILDREN!r}, {{'get_ipython': get_ipython}})"
    client.execute_interactive(code, silent=True, store_history=False, timeout=60)
    say(event="ready")
    wanted: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=listen, args=(manager, wanted), daemon=True).start()
    while (request := wanted.get()) is not None:
        if not run(manager, client, request):
            return
    client.stop_channels()


def listen(manager: Any, wanted: queue.Queue[dict[str, Any] | None]) -> None:
    """Read requests; an interrupt and a ping do not wait for their turn."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request["do"] == "interrupt":
            manager.interrupt_kernel()
        elif request["do"] == "ping":
            say(id=request["id"], event="done")
        else:
            wanted.put(request)
    wanted.put(None)


def run(manager: Any, client: Any, request: dict[str, Any]) -> bool:
    """Run code and tell what it prints, shows and raises; whether the kernel lives."""
    own = request["id"]
    sent = client.execute(request["code"], allow_stdin=False, stop_on_error=False)
    while True:
        try:
            message = client.get_iopub_msg(timeout=_LOOK_SECONDS)
        except queue.Empty:
            if manager.is_alive():
                continue
            say(id=own, event="died")
            return False
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":  # also what threads and children of earlier code have written since
            say(id=own, event="stream", stream=content["name"], text=content["text"])
        elif message["parent_header"].get("msg_id") != sent:
            continue
        elif kind in ("execute_result", "display_data"):
            last = kind == "execute_result"
            say(id=own, event="result", data=content["data"], last=last)
        elif kind == "error":
            names = ("ename", "evalue", "traceback")
            say(id=own, event="error", **{name: content[name] for name in names})
        elif kind == "status" and content["execution_state"] == "idle":
            if asks_to_end(client, sent):
                continue  # until it has: the next piece of code is not to be cut by it
            say(id=own, event="done")
            return True


def asks_to_end(client: Any, sent: str) -> bool:
    """Whether code has asked its kernel to end (``exit()``), which it does a moment later."""
    while True:
        try:
            reply = client.get_shell_msg(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return False
        if reply["parent_header"].get("msg_id") == sent:
            asked = reply["content"].get("payload") or ()
            return any(one["source"] == "ask_exit" and not one["keepkernel"] for one in asked)


if __name__ == "__main__":
    main()
