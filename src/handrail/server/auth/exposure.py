"""Refuses a listener by which other users or machines could run commands without a token."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from handrail.errors import UsageError

if TYPE_CHECKING:
    from handrail.server_settings import ServerSettings

_DEFAULT_OVERFLOW = 65_534


def check_exposure(settings: ServerSettings) -> None:
    """Refuse an open listener without authentication, unless a flag asks for it."""
    from handrail.server.auth.tokens import AuthMode

    open_tcp = settings.listen.kind == "websocket" and settings.auth.mode is AuthMode.NONE
    check_users(settings.any_user or not open_tcp, "--ws-auth")
    if (
        not settings.listen.is_loopback
        and settings.auth.mode is AuthMode.NONE
        and not settings.insecure_no_auth
    ):
        raise UsageError(
            f"refusing to listen on {settings.listen.host} without authentication: every"
            " peer that can connect could run commands; give --ws-auth, or --insecure-no-auth if"
            " something else keeps strangers out"
        )


def is_overflow_user() -> bool:
    """Whether this process runs as the overflow user, which stands for all unmapped users."""
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            overflow = int(file.read())
    except (OSError, ValueError):
        overflow = _DEFAULT_OVERFLOW
    return os.geteuid() == overflow


def check_users(decided: bool, flag: str) -> None:
    """Refuse a listener that would take other users for our own; raises UsageError.

    ``decided``: a token or --any-user says already which users may connect.
    """
    if decided:
        return
    if is_overflow_user():
        raise UsageError(
            "refusing to listen on TCP without a token: this server runs as the overflow user,"
            " which stands for every user without a uid in this user namespace, so it cannot tell"
            f" their connections from its own; give {flag}, or --any-user if every local user may"
            " run commands, or run the server as a user of its own"
        )
