"""Input of a child: each write once, in order, also over a crash of the server."""
