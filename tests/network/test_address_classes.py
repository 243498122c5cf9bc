"""Addresses that are not public, in every form that leads to them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.network.address_classes import AddressClass, classify, parts

P, L, V, M, X = (
    AddressClass.PUBLIC,
    AddressClass.LOOPBACK,
    AddressClass.PRIVATE,
    AddressClass.METADATA,
    AddressClass.OTHER,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("11.22.33.44", P),
        ("2600:11::44", P),
        ("127.0.0.1", L),
        ("127.255.255.255", L),
        ("128.0.0.0", P),
        ("::1", L),
        ("::2", P),
        ("10.0.0.0", V),
        ("11.0.0.0", P),
        ("172.15.255.255", P),
        ("172.16.0.0", V),
        ("172.31.255.255", V),
        ("172.32.0.0", P),
        ("192.168.1.1", V),
        ("100.64.0.0", V),
        ("100.127.255.255", V),
        ("100.128.0.0", P),
        ("fc00::1", V),
        ("fdff::1", V),
        ("fec0::1", V),
        ("169.254.0.1", M),
        ("169.254.169.254", M),
        ("fe80::1", M),
        ("febf::1", M),
        ("168.63.129.16", M),
        ("168.63.129.17", P),
        ("100.100.100.200", M),
        ("100.100.100.201", V),
        ("192.0.0.192", M),
        ("192.0.0.193", X),
        ("fd00:ec2::254", M),
        ("fd20:ce::254", M),
        ("fd00:c1::a9fe:a9fe", M),
        ("fd00:42::42", M),
        ("0.0.0.0", X),
        ("0.1.2.3", X),
        ("::", X),
        ("224.0.0.1", X),
        ("239.255.255.255", X),
        ("240.0.0.1", X),
        ("255.255.255.255", X),
        ("ff02::1", X),
        ("192.0.2.1", X),
        ("198.18.0.1", X),
        ("198.19.255.255", X),
        ("198.51.100.1", X),
        ("203.0.113.1", X),
        ("2001:db8::1", X),
        ("2001::1", X),
        ("100::1", X),
    ],
)
def test_classes(text: str, kind: AddressClass) -> None:
    assert classify(ip_address(text)) is kind


def test_own_addresses_are_not_public() -> None:
    own = {ip_address("11.22.32.1"), ip_address("169.254.3.3")}
    assert classify(ip_address("11.22.32.1"), own) is AddressClass.OWN
    assert classify(ip_address("169.254.3.3"), own) is M


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("::ffff:127.0.0.1", ["127.0.0.1"]),
        ("::127.0.0.1", ["::7f00:1", "127.0.0.1"]),
        ("::ffff:0:127.0.0.1", ["::ffff:0:7f00:1", "127.0.0.1"]),
        ("64:ff9b::7f00:1", ["64:ff9b::7f00:1", "127.0.0.1"]),
        ("2002:7f00:1::1", ["2002:7f00:1::1", "127.0.0.1"]),
        ("::1", ["::1"]),
        ("::", ["::"]),
        ("2600:11::44", ["2600:11::44"]),
        ("64:ff9b:0:0:0:1::", ["64:ff9b::1:0:0"]),
    ],
)
def test_ipv4_inside_of_ipv6(text: str, carried: list[str]) -> None:
    assert [str(one) for one in parts(ip_address(text))] == carried


@given(st.ip_addresses(v=4))
def test_every_way_to_carry_an_address_is_found(address: object) -> None:
    number = int(address)  # type: ignore[call-overload]
    carriers = [0xFFFF << 32, 0xFFFF << 48, 0x0064FF9B << 96]
    for prefix in carriers:
        assert address in parts(ip_address(prefix | number))
    assert address in parts(ip_address((0x2002 << 112) | number << 80))
    if number > 1:
        assert address in parts(ip_address(f"::{address}"))
