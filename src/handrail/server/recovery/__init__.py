"""Succession of servers and keepers: state directory, adoption, upgrade, a lost keeper."""
