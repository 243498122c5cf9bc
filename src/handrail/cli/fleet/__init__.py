"""What ``handrail fleet`` prints, and how it runs a file of tasks."""
