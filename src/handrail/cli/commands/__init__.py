"""One module per command, imported when it is used."""
