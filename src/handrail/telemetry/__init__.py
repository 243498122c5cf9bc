"""What is measured and how it is shown: names, metrics, logs, and two ways out.

Empty on purpose: ``names`` and ``metrics`` are on the way of every start and pull in nothing,
``otel`` needs packages that are optional.
"""
