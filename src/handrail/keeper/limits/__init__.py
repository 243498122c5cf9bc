"""Limits of a child and of its tree: rlimits, control groups, a watcher where there are none."""
