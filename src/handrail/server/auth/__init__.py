"""Which client may connect: the ordered rules are in ``admission``."""
