"""The seam: the same hands near and far."""
