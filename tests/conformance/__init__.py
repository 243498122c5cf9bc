"""Recorded cases against our code; ``run.py`` is the way in, one module per family of files."""
