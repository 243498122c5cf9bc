"""Connect to the addresses that ``network/decide.py`` allowed, in their order, and to no others."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence

from handrail.network import refusal_replies as replies
from handrail.network.hosts import Address
from handrail.network.porter import streams

EACH_SECONDS = 10.0
ALL_SECONDS = 30.0

_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


class DialFailed(Exception):
    """The other side was not reached; ``code`` is the reply of SOCKS."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.why = why
        self.code = code


NO_NAME = DialFailed("the name does not exist, or no name server answered", replies.SOCKS_NO_HOST)


async def dial(addresses: Sequence[Address], port: int) -> socket.socket:
    """A connection to the first address that answers; raises DialFailed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ALL_SECONDS
    failure = DialFailed("there is no address", replies.SOCKS_NO_HOST)
    for address in addresses:
        left = min(EACH_SECONDS, deadline - loop.time())
        if left <= 0:
            break
        sock = streams.socket_for(address)
        try:
            streams.prepare(sock)
            await streams.connect(loop, sock, (str(address), port), left)
        except (OSError, TimeoutError) as error:
            sock.close()
            failure = failed(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


def connect_here(address: Address, port: int) -> socket.socket | None:
    """A connection to an address of this machine, where the kernel answers at once.

    None: it did not, or refused.
    """
    try:
        sock = streams.socket_for(address)
    except OSError:
        return None
    try:
        number = streams.connect_at_once(sock, (str(address), port))
        if number == 0:
            streams.prepare(sock)
            return sock
    except OSError:
        pass
    sock.close()
    return None


def failed(error: OSError | TimeoutError) -> DialFailed:
    """The error for the client when a connect has failed."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return DialFailed("the connection timed out", replies.SOCKS_TIMEOUT)
    if isinstance(error, ConnectionRefusedError):
        return DialFailed("connection refused", replies.SOCKS_REFUSED)
    if error.errno in _UNREACHABLE:
        return DialFailed("network unreachable", replies.SOCKS_NETWORK)
    return DialFailed((error.strerror or "connect failed").lower(), replies.SOCKS_NETWORK)
