"""One machine, many clients: listening, sessions, and the methods of the wire."""
