"""Tests of ``handrail.policy.guard``."""
