"""Which model answers: the only place that names a provider.

Invariant: a model is known by a name that can be stored with a run; keys stay in the environment.
"""

from __future__ import annotations

import os
from typing import Final

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI

from standfast.checkpoint import errors
from standfast.nodes.offline import OfflineModel

OFFLINE: Final = "offline"
_DEFAULT_OPENAI: Final = "gpt-4.1-mini"
_REQUEST_SECONDS: Final = 120.0


def default_model() -> str:
    """The model's name when none is given: OpenAI's if there is a key, else the offline model."""
    if os.environ.get("OPENAI_API_KEY"):
        return f"openai:{os.environ.get('OPENAI_MODEL') or _DEFAULT_OPENAI}"
    return OFFLINE


def load_model(name: str) -> BaseChatModel:
    """The chat model of this name: `offline` or `openai:NAME`. Raises `ModelNotConfigured`."""
    if name == OFFLINE:
        return OfflineModel()
    provider, _, model = name.partition(":")
    if provider != "openai" or not model:
        raise errors.ModelNotConfigured(f"there is no model {name!r}; use offline or openai:NAME", model=name)
    if not os.environ.get("OPENAI_API_KEY"):
        raise errors.ModelNotConfigured(
            f"model {name!r} needs OPENAI_API_KEY (and OPENAI_BASE_URL for another compatible server)",
            model=name,
        )
    # Attempts are counted in the ledger: the client must not add its own.
    return ChatOpenAI(model=model, max_retries=0, timeout=_REQUEST_SECONDS, stream_usage=True)
