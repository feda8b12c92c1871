"""What an agent can do to the world, and the rules it obeys."""
