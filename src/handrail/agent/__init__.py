"""What an agent holds on to: ``AgentShell`` and the orchestrator as its gate."""
