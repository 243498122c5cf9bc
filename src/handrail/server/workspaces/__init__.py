"""The workspaces that a server holds for a fleet: ``handrail serve --workspaces DIR``."""
