"""Which server commands the keeper: the lease, links, handing over, fencing the previous one."""
