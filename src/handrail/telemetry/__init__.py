"""Metrics and logs: names, metrics, logs, and two exporters.

Empty on purpose: every start imports ``names`` and ``metrics``, which pull in nothing; ``otel``
needs packages that are optional.
"""
