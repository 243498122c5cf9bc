"""The exec-server: listening, sessions, and the methods of the wire for many clients."""
