"""Sandboxes made by bubblewrap: its arguments, its start, and what runs in it."""
