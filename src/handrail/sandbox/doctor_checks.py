"""What ``doctor`` checks: each finding says what there is, and how to get what is missing."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass

from handrail import own_code
from handrail.errors import SandboxUnavailable
from handrail.keeper.limits import tree_watcher
from handrail.keeper.limits.cgroups import Cgroups
from handrail.sandbox import probe
from handrail.sandbox.landlock import ruleset
from handrail.sandbox.plan import mount_aliases
from handrail.sandbox.syscalls import ARCHES

#: Fixes the links bwrap follows while it makes mount points (CVE-2026-87766).
_SOUND = (0, 12)
APPARMOR_PROFILE = """\
abi <abi/4.0>,
include <tunables/global>
profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this machine.  ``needed``: without it no command can be sandboxed."""

    subject: str
    good: bool
    what: str
    remedy: str = ""
    needed: bool = False

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def _either(
    subject: str, good: bool, there: str, missing: str, remedy: str, *, needed: bool = False
) -> Finding:
    """A finding in one of two forms; only the bad one has a remedy."""
    return Finding(subject, good, there if good else missing, "" if good else remedy, needed)


def examine() -> list[Finding]:
    """Check everything that matters, the needed things first."""
    return [
        _architecture(),
        *_bubblewrap(),
        _namespaces(),
        _apparmor(),
        _seccomp(),
        _landlock(),
        _cgroups(),
        _limits(),
        _own_code(),
    ]


def _own_code() -> Finding:
    """Report hard links to our files: they can be changed where ours are read-only."""
    linked = _linked_files()
    return _either(
        "own code",
        not linked,
        "no file of it has a second name",
        f"{len(linked)} files that handrail runs from have a second name: a command that may write"
        " there changes them",
        "install handrail with copies (UV_LINK_MODE=copy)",
    )


def _linked_files() -> list[str]:
    """The files of handrail with more than one hard link."""
    found = []
    for _, real, kind in own_code.places():
        top = os.fsdecode(real)
        if kind != own_code.CODE or os.path.basename(top) not in ("handrail", *own_code.PACKAGES):
            continue
        for directory, _, names in os.walk(top):
            for path in (os.path.join(directory, name) for name in names):
                try:
                    if os.lstat(path).st_nlink > 1:
                        found.append(path)
                except OSError:
                    pass  # gone meanwhile
    return found


def _architecture() -> Finding:
    machine = os.uname().machine
    remedy = "run commands on x86_64 or aarch64"
    return _either("architecture", machine in ARCHES, machine, machine, remedy, needed=True)


def _bubblewrap() -> list[Finding]:
    try:
        path = probe.find_bubblewrap()
    except SandboxUnavailable as error:
        return [Finding("bubblewrap", False, str(error), _command(str(error)), needed=True)]
    try:
        found = probe.bubblewrap()
    except SandboxUnavailable as error:
        remedy = _command(str(error)) or _unshare_remedy()
        return [Finding("bubblewrap", False, f"{path}: {error}", remedy, needed=True)]
    numbers = tuple(map(int, re.findall(r"\d+", found.version)[:2]))
    return [
        Finding("bubblewrap", True, f"{found.version} at {path}, works", needed=True),
        _either(
            "unix sockets",
            found.connects,
            "made in the sandbox work, those of the host are out of reach",
            "none can be made in a sandbox: connections of a command cannot be announced here",
            "use Linux 5.6 or newer, outside of another sandbox that announces system calls,"
            " with kernel.yama.ptrace_scope below 3",
        ),
        _either(
            "managed network",
            found.connects,
            "enforced: sandboxed commands reach listed hosts through the porter, and nothing else",
            "refused here: connections of a command cannot be announced",
            "as for unix sockets; network off and open work without it",
        ),
        _either(
            "later mounts",
            found.apart or not probe.receives_mounts(mount_aliases.read()),
            "stay outside",
            "of the host show up in sandboxes with the permissions they have outside",
            "`mount --make-rprivate /` in a mount namespace for the server, as root",
        ),
        _either(
            "bubblewrap version",
            numbers >= _SOUND,
            "0.12 or newer",
            f"{found.version} follows links while it makes mount points; we make them ourselves",
            "install bubblewrap 0.12 or newer when you can",
        ),
        _either(
            "/proc in sandboxes",
            found.fresh_proc,
            "fresh",
            "cannot be mounted here, so it is empty",
            "run the outer container with an unmasked /proc",
        ),
    ]


def _unshare_remedy() -> str:
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=15000"
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _apparmor_remedy()
    return "in a container: allow unshare and mount (for Docker a seccomp profile that does)"


def _namespaces() -> Finding:
    most = _read("/proc/sys/user/max_user_namespaces")
    clone = _read("/proc/sys/kernel/unprivileged_userns_clone")
    good = most != "0" and clone != "0"
    limit = f"at most {most or 'unknown'}"
    return _either("user namespaces", good, limit, "switched off", _unshare_remedy(), needed=True)


def _apparmor() -> Finding:
    restricted = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
    profiles = os.path.exists("/etc/apparmor.d/bwrap-userns-restrict") or os.path.exists(
        "/etc/apparmor.d/bwrap"
    )
    good = not restricted or profiles
    what = "does not restrict user namespaces"
    if restricted:
        what = "restricts user namespaces" + (", with a profile for bwrap" if profiles else "")
    return Finding("AppArmor", good, what, "" if good else _apparmor_remedy())


def _apparmor_remedy() -> str:
    text = APPARMOR_PROFILE.replace("\n", "\\n")
    return f"printf '{text}' > /etc/apparmor.d/bwrap && apparmor_parser -r /etc/apparmor.d/bwrap"


def _seccomp() -> Finding:
    actions = _read("/proc/sys/kernel/seccomp/actions_avail")
    remedy = "use a kernel with CONFIG_SECCOMP_FILTER"
    return _either(
        "seccomp", "errno" in actions, actions, actions or "not there", remedy, needed=True
    )


def _landlock() -> Finding:
    version = ruleset.abi_version()
    remedy = "boot with lsm=landlock,... for a fallback without namespaces"
    return _either("Landlock", version > 0, f"ABI {version}", "not there", remedy)


def _cgroups() -> Finding:
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    line = _read("/proc/self/cgroup").splitlines()
    own = line[-1].rpartition(":")[2] if line else ""
    writable = unified and os.access("/sys/fs/cgroup" + own, os.W_OK)
    what = "version 2" if unified else "version 1 or none"
    return _either(
        "cgroups",
        writable,
        f"{what}, our own can be divided",
        f"{what}, our own cannot be divided",
        "start under `systemd-run --user --scope -p Delegate=yes`",
    )


def _limits() -> Finding:
    """Report how the limits of whole trees are enforced; those of a process always are."""
    groups = Cgroups()
    groups.close()
    held = {"memory": b"memory", "processes": b"pids"}
    looked = [name for name, of_keeper in held.items() if of_keeper not in groups.limits]
    return _either(
        "limits",
        not looked,
        "memory and processes by control groups, output by handrail, the others by the kernel",
        f"{' and '.join(looked)} by looking at /proc {1000 // tree_watcher.PAUSE} times a second,"
        " output by handrail, the others by the kernel",
        "for control groups start under `systemd-run --user --scope -p Delegate=yes`",
    )


def _command(text: str) -> str:
    """The first command in a sentence."""
    found = re.search(r"`([^`]+)`", text)
    return found[1] if found else ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
