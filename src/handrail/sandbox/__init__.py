"""CONTAINING CHILDREN: what a profile means, and what on this machine can hold it."""
