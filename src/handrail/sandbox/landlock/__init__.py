"""Sandboxes without user namespaces: Landlock rules and the program that enters them."""
