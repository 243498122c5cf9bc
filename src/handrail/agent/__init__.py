"""``AgentShell``, and the orchestrator as its gate."""
