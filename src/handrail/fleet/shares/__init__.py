"""The shares of a fleet on Ray, without Ray: servers, supervision, membership, quotas, tokens."""
