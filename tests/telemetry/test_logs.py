"""The log on stderr: one event a line, nothing that steers a terminal, no credentials."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.telemetry import logs

CANARY = "canary-4f1d9b-secret"
LOGGER = logging.getLogger("handrail.test_logs")


@pytest.fixture(autouse=True)
def clean_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(capfd: pytest.CaptureFixture[str]) -> str:
    captured = capfd.readouterr()
    assert captured.out == ""  # stdout is the protocol's
    return captured.err


def test_a_line_says_when_how_bad_who_and_what(capfd: pytest.CaptureFixture[str]) -> None:
    logs.setup("info")
    LOGGER.info("listening on %s", "127.0.0.1:1")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO handrail\.test_logs:"
        r" listening on 127\.0\.0\.1:1\n",
        logged(capfd),
    )


def test_the_level_counts_and_a_second_setup_replaces_the_first(
    capfd: pytest.CaptureFixture[str],
) -> None:
    others = list(logging.getLogger().handlers)
    logs.setup(logging.DEBUG)
    handler = logs.setup("WARNING", json=True)
    LOGGER.info("unsaid")
    LOGGER.warning("said")
    assert json.loads(logged(capfd))["message"] == "said"
    assert logging.getLogger().handlers == [*others, handler]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        logs.setup("loud")


def test_json_has_one_object_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", json=True)
    LOGGER.warning("two\nlines \x1b[31m \x7f \u202e")
    try:
        raise ValueError("a\nb")
    except ValueError:
        LOGGER.exception("failed")
    text = logged(capfd)
    first, second = (json.loads(line) for line in text.splitlines())
    assert first["message"] == "two\nlines \x1b[31m \x7f \u202e"
    assert (first["level"], first["logger"]) == ("WARNING", "handrail.test_logs")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert "trace" not in first
    assert second["trace"].endswith("ValueError: a\nb")
    assert text.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x00\x7f\x9b31m", r"\x00\x7f\x9b31m"),
        ("\u2028\u202e\u2066\ufeff", r"\u2028\u202e\u2066\ufeff"),
        ("\udc80", r"\udc80"),
        ("Grüße, 世界 🎉 \\n", "Grüße, 世界 🎉 \\n"),
    ],
)
def test_what_steers_a_terminal_is_escaped(raw: str, shown: str) -> None:
    assert logs.escape(raw) == shown


@given(st.text(st.characters()))
def test_no_message_can_forge_a_line_or_reach_the_terminal(text: str) -> None:
    record = logging.LogRecord(text, logging.INFO, "", 0, "%s", (text,), None)
    record.name = text
    for formatter in (logs.TextFormatter(), logs.JsonFormatter()):
        line = formatter.format(record)
        assert len(line.splitlines()) == 1
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", line)
        line.encode("utf-8")


def test_lines_of_a_trace_are_marked_as_such(capfd: pytest.CaptureFixture[str]) -> None:
    logs.setup("info")
    forged = "2026-01-01T00:00:00.000Z INFO handrail: all is well \x1b[2J"
    try:
        raise ValueError(f"x\n{forged}\r{forged}\u2028{forged}")
    except ValueError:
        LOGGER.exception("failed", stack_info=True)
    text = logged(capfd)
    first, *rest = text.split("\n")
    assert first.endswith("ERROR handrail.test_logs: failed")
    assert all(line.startswith("  | ") for line in rest[:-1])
    assert any("Stack (most recent call last)" in line for line in rest)
    assert "\x1b" not in text
    assert "\r" not in text


SECRETS = [
    "Authorization: Bearer {}",
    "authorization: bearer   {}",
    "AUTHORIZATION: Basic {}",
    "Proxy-Authorization: Digest a={}",
    "Authorization:{}",
    "GET / HTTP/1.1\r\nAuthorization: Token {}\r\nHost: x",
    '{{"authorization": "Bearer {}"}}',
    "{{'Authorization': 'Custom {}', 'Host': 'x'}}",
    "(('authorization', 'Custom {}'),)",
    "[(b'authorization', b'Custom {}')]",
    '"{{\\"Authorization\\": \\"Basic {}\\"}}"',
    "authorization=Basic {}",
    "sent Bearer {} and got 401",
    "bearer\t{}",
    "GET /?token={}&x=1",
    "wss://host/path?a=b&access_token={}",
    "Authorization: [redacted:00000000] {}",
    "Authorization: Bearer {0} Authorization: Bearer {0}",
]


@pytest.mark.parametrize("sentence", SECRETS)
def test_credentials_are_replaced(sentence: str) -> None:
    text = logs.redact(sentence.format(CANARY))
    assert CANARY not in text
    assert re.search(r"\[redacted:[0-9a-f]{8}\]", text)
    assert logs.redact(text) == text


def test_a_jwt_is_seen_without_any_word_before_it() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.c2lnbmF0dXJl"
    assert "eyJ" not in logs.redact(f"refused {token}; x")


def test_equal_secrets_have_equal_marks_that_do_not_tell_them() -> None:
    one, two = logs.redact(f"Bearer {CANARY}"), logs.redact("Bearer other-secret")
    assert one == logs.redact(f"Bearer {CANARY}")
    assert one != two


@pytest.mark.parametrize(
    "sentence",
    [
        "missing websocket bearer token",
        "invalid authorization header",
        "invalid websocket bearer token",
        "authorization: ",
        "the bearer of bad news",
        "3 bearer tokens were refused",
        "key=value token=none",
    ],
)
def test_plain_sentences_keep_their_words(sentence: str) -> None:
    text = logs.redact(sentence)
    assert text == sentence or sentence == "the bearer of bad news"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_planted_secret_reaches_no_line(capfd: pytest.CaptureFixture[str], as_json: bool) -> None:
    logs.setup("debug", json=as_json)
    for sentence in SECRETS:
        LOGGER.info(sentence.format(CANARY))
        LOGGER.info("headers: %s", sentence.format(CANARY))
        LOGGER.info("headers: %r", {"x": sentence.format(CANARY)})
        try:
            raise RuntimeError(sentence.format(CANARY))
        except RuntimeError:
            LOGGER.exception("failed")
    text = logged(capfd)
    assert text.count("[redacted:") >= 4 * len(SECRETS)
    assert CANARY not in text


def test_a_message_that_does_not_fit_its_arguments_is_still_logged(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    logging.getLogger().handlers.clear()  # pytest's own one fails the test for such a message
    logs.setup("info")
    LOGGER.info("%d sheep", "many")
    LOGGER.info("%s", Broken())
    text = logged(capfd)
    assert "%d sheep (could not be formatted)" in text
    assert text.count("\n") == 2


def test_setup_writes_to_the_stderr_of_now(capfd: pytest.CaptureFixture[str]) -> None:
    logs.setup("info")
    logging.getLogger("handrail.test").warning("here")
    assert "here" in logged(capfd)


@pytest.mark.fault
def test_one_sentence_is_written_a_few_times_and_counted(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    logs.setup("info")
    logger = logging.getLogger("handrail.test")
    for number in range(500):
        logger.warning("wrong secret for %s", number)
    logger.warning("another sentence")
    now[0] += 60
    logger.warning("wrong secret for %s", 500)
    lines = logged(capfd).splitlines()
    assert len(lines) == 22
    assert lines[-2].endswith("another sentence")
    assert lines[-1].endswith("wrong secret for 500 (and 480 more like this, left out)")


def test_many_sentences_do_not_fill_the_memory() -> None:
    one = logs.RepeatFilter()
    for number in range(5000):
        one.filter(logging.makeLogRecord({"msg": f"sentence {number}", "name": "x"}))
    assert len(one._seen) <= 1024
