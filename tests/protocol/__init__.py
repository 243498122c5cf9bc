"""Tests of ``handrail.protocol``: tables of what the wire says, and properties."""
