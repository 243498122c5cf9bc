"""Tests of ``handrail.cli`` and of the settings it makes."""
