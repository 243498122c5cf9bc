"""Output of a command for its caller: collected within limits, by lines."""
