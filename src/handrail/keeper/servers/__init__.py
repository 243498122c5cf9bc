"""Which server commands the keeper: lease, links, handoff, fence, the wait for the next."""
