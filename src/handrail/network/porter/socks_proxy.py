"""The SOCKS proxy: one handshake, then a tunnel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from handrail.network import refusal_replies as replies
from handrail.network.decide import SOCKS, Target
from handrail.network.porter.dialer import DialFailed
from handrail.network.porter.far_end import Refused
from handrail.network.socks import SocksError, SocksReader, SocksRequest

if TYPE_CHECKING:
    from handrail.network.porter.connection import Connection

HANDSHAKE_SECONDS = 10.0


async def serve(connection: Connection) -> None:
    """Serve a connection that began with the version of SOCKS."""
    client = connection.client
    if not connection.process.policy.config.enable_socks5:
        return
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            request = await _handshake(connection)
    except SocksError as error:
        await client.write(error.answer)
        return
    if request is None:
        return
    client.rest = request.rest
    try:
        way = await connection.open(Target(SOCKS, request.host, request.port))
    except Refused:
        await client.write(replies.socks_reply(replies.SOCKS_REFUSED_BY_RULE))
        return
    except DialFailed as error:
        await client.write(replies.socks_reply(error.code))
        return
    connection.tunnel(way, replies.socks_reply(replies.SOCKS_OK))


async def _handshake(connection: Connection) -> SocksRequest | None:
    """The request; None when the client has gone."""
    reader = SocksReader()
    while True:
        data = await connection.client.read()
        if not data:
            return None
        answer, request = reader.feed(data)
        await connection.client.write(answer)
        if request is not None:
            return request
