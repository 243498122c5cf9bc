"""Tests of ``handrail.server``; the three kits serve ``tests/cli`` and ``tests/system`` too."""
