"""Numbered migrations, applied in order by `standfast.checkpoint.migrate`."""
