"""What each HTTP path of a listener answers: the WebSocket at ``/``, ``/readyz`` and ``/metrics``.

``server/auth/admission.py`` has refused strangers before; here the token is checked where something
is given away.
"""

from __future__ import annotations

from collections.abc import Callable

from handrail.server.auth.tokens import Authenticator, AuthFailure, Principal
from handrail.telemetry import prometheus
from handrail.transport.base import Receiver
from handrail.transport.http_head import HttpRequest, HttpResponse, upgrade_problem

_READ = ("GET", "HEAD")
_ALLOW_READ = (("Allow", "GET,HEAD"),)
_NOT_FOUND = HttpResponse(404)


class HttpRoutes:
    """Answers an admitted request, or gives the receiver of its WebSocket connection."""

    def __init__(
        self,
        authenticator: Authenticator,
        metrics_text: Callable[[Principal], bytes],
        new_receiver: Callable[[Principal], Receiver],
    ) -> None:
        self._authenticator = authenticator
        self._metrics_text = metrics_text
        self._new_receiver = new_receiver

    def __call__(self, request: HttpRequest) -> HttpResponse | Receiver:
        if request.path == "/":
            return self._upgrade(request)
        if request.path == "/readyz":
            return HttpResponse(200) if request.method in _READ else _not_allowed()
        if request.path == "/metrics":
            return self._metrics(request)
        return _NOT_FOUND

    def _upgrade(self, request: HttpRequest) -> HttpResponse | Receiver:
        if request.method != "GET":
            return HttpResponse(405, b"Request method must be `GET`", headers=(("Allow", "GET"),))
        problem = upgrade_problem(request)
        if problem is not None:
            # RFC 6455, 4.4: name the version we speak, in case the client's was the problem.
            version = (("Sec-WebSocket-Version", "13"),)
            return HttpResponse(400, problem.encode(), headers=version)
        who = self._authenticator.check(request)
        if isinstance(who, AuthFailure):
            return _unauthorized(who)
        return self._new_receiver(who)

    def _metrics(self, request: HttpRequest) -> HttpResponse:
        if request.method not in _READ:
            return _not_allowed()
        who = self._authenticator.check(request)
        if isinstance(who, AuthFailure):
            return _unauthorized(who)
        return HttpResponse(200, self._metrics_text(who), content_type=prometheus.CONTENT_TYPE)


def _not_allowed() -> HttpResponse:
    return HttpResponse(405, headers=_ALLOW_READ)


def _unauthorized(failure: AuthFailure) -> HttpResponse:
    challenge = (("WWW-Authenticate", "Bearer"),)
    return HttpResponse(failure.status, failure.body, headers=challenge)
