"""One command in the foreground of a terminal, without a keeper."""
