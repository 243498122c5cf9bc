"""Sockets that belong to the network namespace of a sandbox, and the programs that make them."""
