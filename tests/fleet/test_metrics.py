"""Metrics that a server of a fleet tells, also one that means ill."""

from __future__ import annotations

import http.server
import threading

import pytest

from handrail.fleet import metrics


class _Odd(http.server.BaseHTTPRequestHandler):
    """Leads elsewhere, and there tells too much."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.send_response(302)
            self.send_header("Location", "/elsewhere/metrics")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 11)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_metrics_of_an_odd_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Odd) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"ws://127.0.0.1:{server.server_port}"
            with pytest.raises(OSError, match="302"):
                metrics.fetch(url, "token", None)
            assert metrics.fetch(f"{url}/elsewhere", "token", None) == "x" * 11
            monkeypatch.setattr(metrics, "_MOST_BYTES", 10)
            with pytest.raises(OSError, match="longer than 10"):
                metrics.fetch(f"{url}/elsewhere", "token", None)
        finally:
            server.shutdown()
            thread.join()
