"""The connection to an exec-server: dialing, calls, and a session that outlives connections."""
