"""Executors: one contract for processes and files of this machine and of others."""
