"""File calls that are executed in a sandbox."""
