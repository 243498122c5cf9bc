"""The output of a process for its readers: order, retention, both ends of what is long."""
