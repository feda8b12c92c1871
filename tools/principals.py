"""Who asks and who decides.

Invariant: a principal comes from whoever established it, never from what is being decided. Without an
authenticator a name is taken on the caller's word, and every record of it says so.
"""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass

from standfast.checkpoint import errors


@dataclass(frozen=True)
class Principal:
    """A person or program, by name. `on_word` marks a name that nobody verified."""

    name: str
    on_word: bool

    def __post_init__(self) -> None:
        if not self.name.strip() or "\0" in self.name or len(self.name) > 255:
            raise errors.InvalidRequest(
                f"a principal's name must be 1 to 255 characters without NUL, not {self.name[:40]!r}"
            )

    @classmethod
    def vouched(cls, name: str) -> Principal:
        """Somebody whom the caller vouches for; marked so in every record."""
        return cls(name, on_word=True)

    @classmethod
    def operating_system(cls) -> Principal:
        """The user that this process runs as; an account without a name, as in many containers, is `uid-N`."""
        try:
            name = getpass.getuser()
        except (OSError, KeyError, ImportError):
            name = f"uid-{os.getuid()}"
        return cls(name, on_word=False)
