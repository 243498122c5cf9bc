"""Limits how many starts the keeper is asked for at a time."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque

from handrail.keeper import messages
from handrail.process.keeper_client.link import KeeperLink

#: Starts the keeper is asked for at a time.  It does one after another anyway, and so what has to
#: be with it at once (spools, signals) never waits behind a crowd.
_STARTS_MOST = 32


class StartQueue:
    """Starts in progress, and those that wait for their turn."""

    def __init__(self, link: KeeperLink) -> None:
        self._link = link
        self._asked: set[int] = set()  # serials of starts under way
        self._later: deque[tuple[int, asyncio.Future[messages.Message], list[bytes], list[int]]] = (
            deque()
        )

    def __len__(self) -> int:
        return len(self._asked) + len(self._later)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._later)

    def ask(
        self, fields: list[bytes], own: list[int], passed: list[int]
    ) -> asyncio.Future[messages.Message]:
        """Ask for a start now or later; copies of the fds are kept until then.

        Those of ``own`` may be kept instead, and are taken out of that list.
        """
        link = self._link
        serial, question = link.reserve()
        # A keeper that does not know our children yet starts none: its mark may be in no file, and
        # what it has started would never be ended should it be killed together with us.
        if (len(self._asked) < _STARTS_MOST and not link.bereft) or not link.alive:
            if self._asked and not passed and link.alive:  # the keeper is busy with others
                self._asked.add(serial)  # before: it may fail at once
                link.start_soon(serial, question, fields, own)
            else:
                link.send_question(serial, question, messages.SPAWN, fields, [*own, *passed])
                self._asked.add(serial)
        else:
            copies = [os.dup(fd) for fd in (*own, *passed)]
            self._later.append((serial, question, fields, copies))
            link.await_answer(serial, question)
        return question

    def answered(self, serial: int) -> None:
        """Note an answer; if it was a start's, the next may begin."""
        if serial in self._asked:
            self._asked.discard(serial)
            self.start_next()

    def start_next(self) -> None:
        """Ask for as many starts as may be in progress."""
        while self._later and len(self._asked) < _STARTS_MOST and not self._link.bereft:
            serial, question, fields, fds = self._later.popleft()
            try:
                if not question.done():
                    self._link.tell(messages.SPAWN, serial, fields, fds)
                    self._asked.add(serial)
            except OSError as error:
                self._link.fail(serial, error)
            except ValueError as error:
                self._link.fail(serial, OSError(errno.EINVAL, str(error)))
            finally:
                for fd in fds:
                    os.close(fd)

    def forget_asked(self) -> None:
        """Forget the starts that a lost keeper was asked for."""
        self._asked.clear()

    def close(self) -> None:
        """Fail the waiting starts."""
        for *_, fds in self._later:
            for fd in fds:
                os.close(fd)
        self._later.clear()
