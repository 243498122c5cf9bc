"""Programs that run one command after the other and keep their state: shells and Python."""
