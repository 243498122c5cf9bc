"""Moves messages and understands none: WebSockets, Unix sockets, stdio, and pairs in memory."""
