"""The agent and the runtime that drives it."""
