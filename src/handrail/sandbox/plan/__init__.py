"""What a profile means on this file system: rules, protected names, mounts."""
