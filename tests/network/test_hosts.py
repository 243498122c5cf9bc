"""Hosts have one canonical form, and what could be read in two ways is refused."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.network.hosts import BadHost, canonical, checked_port, split_authority


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("OK.Example", "ok.example"),
        ("ok.example.", "ok.example"),
        ("_dmarc.ok.example", "_dmarc.ok.example"),
        ("a", "a"),
        ("1.2.3.example", "1.2.3.example"),
        ("0x7f.example", "0x7f.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.0.0.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("1.2.3", "1.2.0.3"),
        ("0", "0.0.0.0"),
        ("00", "0.0.0.0"),
        ("1.2.65535", "1.2.255.255"),
        ("4294967295", "255.255.255.255"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2600:0011::0044", "2600:11::44"),
        ("FE80::1", "fe80::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::FFFF:7f00:1", "127.0.0.1"),
        ("::ffff:0:127.0.0.1", "::ffff:0:7f00:1"),
    ],
)
def test_one_form_for_every_spelling(text: str, host: str) -> None:
    assert canonical(text).text == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".ok.example",
        "ok..example",
        "ok.example..",
        "-a.example",
        "a-.example",
        "a.-",
        "a" * 64 + ".example",
        ".".join(["a" * 49] * 4) + ".bbbbb" * 10,
        "*.example",
        "ok example",
        " ok.example",
        "ok.example\n",
        "ok\0.example",
        "ok%2eexample",
        "u@ok.example",
        "ok.example/",
        "ok.example\\x",
        "bücher.example",
        "ok。example",
        "256.1.1.1",
        "1.2.3.256",
        "1.2.3.4.5",
        "4294967296",
        "08.1.1.1",
        "1.2.3.0x",
        "1.2.3.0xg",
        "foo.1",
        "foo.0x1",
        "1..2",
        "9" * 300,
        "[127.0.0.1]",
        "[ok.example]",
        "[::1",
        "::1]",
        "[[::1]]",
        "[]",
        "::1%lo",
        "fe80::1%25lo",
        "::ffff:127.0.0.1%x.ok.example",
        "::1.",
        ":::1",
        "1:2:3:4:5:6:7:8:9",
        "ok.example:80",
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(BadHost):
        canonical(text)


@given(st.text(max_size=40) | st.text("0123456789abcdefx.:-[]%_", max_size=40))
def test_a_canonical_host_is_its_own_canonical_form(text: str) -> None:
    try:
        host = canonical(text)
    except BadHost:
        return
    assert canonical(host.text) == host
    assert canonical(host.bracketed) == host
    assert host.text.isascii()
    assert host.text == host.text.lower()


@given(st.text("0123456789abcdefxABCDEFX.", min_size=1, max_size=24))
def test_addresses_are_read_as_the_c_library_reads_them(text: str) -> None:
    try:
        known = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        return
    assert canonical(text).text == known


@given(st.ip_addresses(v=6))
def test_every_ipv6_address_is_a_host(address: object) -> None:
    found = canonical(str(address))
    assert found.address is not None
    assert canonical(f"[{address}]") == found


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("ok.example", "ok.example", None),
        ("ok.example:80", "ok.example", 80),
        ("[::1]:8080", "[::1]", 8080),
        ("[::1]", "[::1]", None),
        ("a:00080", "a", 80),
    ],
)
def test_authorities(text: str, host: str, port: int | None) -> None:
    assert split_authority(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["::1:80", "a:", "a:0", "a:65536", "a:-1", "a:+1", "a:1 ", "a:٣", "[::1", "[::1]80", "a:b:80"],
)
def test_authorities_that_are_refused(text: str) -> None:
    with pytest.raises(BadHost):
        split_authority(text)


@pytest.mark.parametrize("port", [0, -1, 65536, True, None, "80", 80.0])
def test_ports_that_are_none(port: object) -> None:
    with pytest.raises(BadHost):
        checked_port(port)
