from __future__ import annotations

import signal

import pytest

from handrail.errors import UsageError
from handrail.process.signal_names import signal_name


@pytest.mark.parametrize("given", ["TERM", "SIGTERM", "term", "sigterm", 15, "15", signal.SIGTERM])
def test_a_signal_is_given_in_every_usual_way(given: object) -> None:
    assert signal_name(given) == "term"


@pytest.mark.parametrize("given", ["interrupt", "INT", 2, signal.SIGINT])
def test_sigint_has_the_name_that_every_server_knows(given: object) -> None:
    assert signal_name(given) == "interrupt"


@pytest.mark.parametrize("given", ["bang", "", "SIG", 0, -1, 1000, True, None, 1.5, b"term"])
def test_what_is_no_signal(given: object) -> None:
    with pytest.raises(UsageError, match="no signal"):
        signal_name(given)
