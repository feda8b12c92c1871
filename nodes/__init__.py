"""One step of thought or work per file."""
