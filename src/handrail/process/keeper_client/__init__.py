"""The server's side of the keeper: start it, prove it, talk to it."""
