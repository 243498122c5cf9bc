"""Real servers, real sockets, real children: the fault matrix of reliability.md, by its numbers."""
