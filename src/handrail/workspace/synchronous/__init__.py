"""Blocking versions of workspaces, processes, files and sessions, on a loop in a thread."""
