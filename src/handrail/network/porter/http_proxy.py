"""The HTTP proxy: CONNECT, and plain requests one after the other.

Every request is decided on, also on a connection that is kept.  A connection to an origin is kept
for the next request to the same host and port.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from handrail.network import heads
from handrail.network import refusal_replies as replies
from handrail.network.bodies import BadBody
from handrail.network.decide import CONNECT, Target
from handrail.network.porter.dialer import DialFailed
from handrail.network.porter.far_end import FarEnd, Refused
from handrail.network.porter.forwarding import Exchange, UpstreamNonsense
from handrail.transport.http_head import HeadError

if TYPE_CHECKING:
    from handrail.network.porter.connection import Connection

HEAD_SECONDS = 30.0
#: How long a kept connection may be idle; tools open another one.
IDLE_SECONDS = 300.0


async def serve(connection: Connection) -> None:
    """Serve a connection until it ends."""
    requests = _Requests(connection)
    try:
        while await requests.serve_one():
            pass
    finally:
        requests.drop_way()
    if not requests.tunnelled:
        await connection.client.linger()


class _Requests:
    """The requests of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self._way: FarEnd | None = None
        self.tunnelled = False
        self._target: Target | None = None

    async def serve_one(self) -> bool:
        """Serve one request; whether another may follow."""
        try:
            head = await self._head()
            if head is None:
                return False
            request = heads.parse_request(head)
        except HeadError as error:
            await self._client.write(replies.bad(error.status, error.sentence))
            return False
        if request.target.protocol == CONNECT:
            return await self._connect(request)
        return await self._forward(request)

    async def _head(self) -> bytes | None:
        """The next head; None when the client has gone.  Raises HeadError."""
        reader = heads.ProxyHeadReader()
        data, self._client.rest = self._client.rest, b""
        if not data:
            async with asyncio.timeout(IDLE_SECONDS):
                data = await self._client.read()
        head = reader.feed(data)
        if head is None and data:
            async with asyncio.timeout(HEAD_SECONDS):
                while data and head is None:
                    data = await self._client.read()
                    head = reader.feed(data)
        self._client.rest = reader.rest
        return head

    async def _connect(self, request: heads.ProxyRequest) -> bool:
        # What follows a refused CONNECT could be the tunnel's first bytes as well as a request.
        keep = request.keep and not request.has_body and not self._client.rest
        try:
            way = await self._connection.open(request.target)
        except Refused as refused:
            await self._client.write(replies.refusal(request.target, refused.verdict, keep=keep))
            return keep
        except DialFailed as error:
            await self._client.write(replies.failure(error.why, keep=keep))
            return keep
        self.tunnelled = True
        self._connection.tunnel(way, replies.ESTABLISHED)
        return False

    async def _forward(self, request: heads.ProxyRequest) -> bool:
        # The body of a refused request is not read: the connection cannot go on behind it.
        keep = request.keep and not request.has_body
        head_only = request.method == "HEAD"
        try:
            way = await self._way_to(request.target)
        except Refused as refused:
            await self._client.write(replies.refusal(request.target, refused.verdict, keep=keep))
            return keep
        except DialFailed as error:
            await self._client.write(replies.failure(error.why, keep=keep, head_only=head_only))
            return keep
        exchange = Exchange(self._client, way, request)
        try:
            stays = await exchange.run()
        except UpstreamNonsense as error:
            self.drop_way()
            if exchange.answered:
                return False
            await self._client.write(replies.failure(str(error), keep=False, head_only=head_only))
            return False
        except BadBody as error:
            if not exchange.answered:
                await self._client.write(replies.bad(400, str(error)))
            return False
        if not exchange.far_stays:
            self.drop_way()
        return stays

    async def _way_to(self, target: Target) -> FarEnd:
        """An open way to the target, or a new one; raises Refused or DialFailed."""
        way = self._way
        same = self._target is not None and self._target.key == target.key
        if way is not None and same and not way.far.is_ended():
            await self._connection.recheck(target, way)
            return way
        self.drop_way()
        self._way = await self._connection.open(target)
        self._target = target
        return self._way

    def drop_way(self) -> None:
        """Close the connection to the origin."""
        way, self._way = self._way, None
        if way is not None:
            way.far.close()
