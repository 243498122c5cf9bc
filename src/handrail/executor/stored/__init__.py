"""Results that a server has stored, read as the output and the end of a process."""
