"""Results on disk: the output and the exit of processes that were left, until they are fetched.

``record`` is the format of the output, ``store`` the directory and its retention.  A server writes
them (``handrail.server.results``); a workspace reads them, from this machine's disk or by calls.
"""
