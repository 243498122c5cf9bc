"""What bubblewrap lets a probe do is what a naive reading of the rules says, for random ones."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import Access, Entry, Intent, Machine, resolve
from tests.support.sandboxes import Held, holding

#: Directories two levels deep, with a file in each; one name that is missing everywhere.
DIRECTORIES = [*"ab", *("/".join(pair) for pair in itertools.product("ab", "cd"))]
FILES = [f"{place}/f" for place in DIRECTORIES]
MISSING = ["a/m", "b/c/m/n"]
PLACES = ["", *DIRECTORIES, *FILES, *MISSING]

#: For every path: can it be read, can it be written (a directory: can something be made in it)?
PROBE = """
import json, os, sys
def tried(work):
    try:
        work()
    except OSError:
        return False
    return True
def write(path):
    if os.path.isdir(path):
        os.mkdir(path + "/probe"); os.rmdir(path + "/probe")
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
def read(path):
    if os.path.isdir(path): os.listdir(path)
    else: open(path).close()
def make(path):
    os.makedirs(path)
base = sys.argv[1]
names = json.loads(sys.argv[2])
print(json.dumps({
    "seen": {n: [tried(lambda: read(f"{base}/{n}")), tried(lambda: write(f"{base}/{n}"))]
             for n in names["there"]},
    "made": {n: tried(lambda: make(f"{base}/{n}")) for n in names["missing"]},
}))
"""


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with holding() as held:
        yield held


def model(rules: dict[str, Access], root: Access, path: str) -> Access:
    """The most specific rule that matches, by words alone."""
    parts = path.split("/") if path else []
    for length in range(len(parts), -1, -1):
        found = rules.get("/".join(parts[:length]))
        if found is not None:
            return found
    return root


rule_sets = st.dictionaries(st.sampled_from(PLACES), st.sampled_from(list(Access)), max_size=5)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rules=rule_sets, whole=st.booleans())
def test_the_rules_are_what_happens(held: Held, rules: dict[str, Access], whole: bool) -> None:
    base = tempfile.mkdtemp(dir="/var/tmp")
    try:
        for place in DIRECTORIES:
            Path(base, place).mkdir()
        for place in FILES:
            Path(base, place).write_text("x")
        # Missing paths that may be written are of no effect, and are not asked about.
        missing = [p for p in MISSING if rules.get(p) in (Access.READ, Access.DENY)]
        general = Entry(Access.READ, special="root" if whole else "minimal")
        entries = [
            Entry(access, path=os.fsencode(os.path.join(base, place).rstrip("/")))
            for place, access in rules.items()
        ]
        intent = Intent(entries=(general, *entries), protected=())
        minimal = tuple(p for p in Machine().minimal if os.path.lexists(p))
        profile = resolve(intent, b"/", Machine(minimal=minimal))
        names = json.dumps({"there": ["", *DIRECTORIES, *FILES], "missing": missing})
        try:
            code, said = held.run(profile, ["/usr/bin/python3", "-I", "-c", PROBE, base, names])
        except Refused:
            # A file stands where a rule wants a directory below it.
            return
        assert code == 0, said
        answer = json.loads(said)
        root = Access.READ if whole else Access.DENY
        for place, (read, written) in answer["seen"].items():
            access = model(rules, root, place)
            if (
                not whole
                and access is Access.DENY
                and any(
                    p.startswith(place + "/" if place else "") and a is not Access.DENY
                    for p, a in rules.items()
                )
            ):
                continue  # in an empty root the way to what is open is made of plain directories
            assert (read, written) == (access is not Access.DENY, access is Access.WRITE), place
        for place, made in answer["made"].items():
            assert not made, place
            assert not os.path.lexists(os.path.join(base, place))
        assert not os.path.lexists(os.path.join(base, "a/m"))
    finally:
        shutil.rmtree(base)
