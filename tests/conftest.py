"""For every test: how hypothesis works here."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow, which says nothing about the code; pytest's own limit is the limit.
settings.register_profile("handrail", deadline=None)
settings.load_profile("handrail")
