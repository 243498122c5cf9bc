"""Replace the keeper's program by a newer one: the state saved by the old, loaded by the new."""
