"""File calls that are carried out inside a sandbox."""
