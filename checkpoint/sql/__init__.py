"""Named SQL statements, one file per noun; read through `standfast.checkpoint.statements`."""
