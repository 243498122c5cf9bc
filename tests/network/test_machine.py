"""What this machine says of itself and of names."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from handrail.network import machine


def test_loopback_is_an_own_address() -> None:
    assert ip_address("127.0.0.1") in machine.own_addresses()


def test_the_file_of_hosts(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "# 1.1.1.1 ok.example\n\n11.22.33.44 a OK.example # x\n2600:11::44\tok.example.\n"
        "bad ok.example\n11.22.33.45 ok.example.org\n11.22.33.44 ok.example\n"
    )
    found = machine._listed("ok.example", str(hosts))
    assert [str(one) for one in found] == ["11.22.33.44", "2600:11::44"]
    assert machine._listed("ok.example", str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("name", "asked"), [("ok.invalid", "ok.invalid."), ("intranet", "intranet")]
)
def test_search_domains_are_for_names_of_one_label(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: str
) -> None:
    seen: list[str] = []

    def getaddrinfo(host: str, *_: object, **__: object) -> list[object]:
        seen.append(host)
        end = ("fe80::1%lo", 0, 0, 0)
        return [(socket.AF_INET6, 1, 6, "", end), (socket.AF_INET, 1, 6, "", ("11.22.33.44", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert [str(one) for one in machine.look_up(name)] == ["fe80::1", "11.22.33.44"]
    assert seen == [asked]


def test_a_name_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert machine.look_up("ok.invalid") == []
