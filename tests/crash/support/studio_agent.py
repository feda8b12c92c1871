"""The scripted agent for the development server, as somebody would serve an agent of his own."""

from standfast.graph import build_agent
from standfast.graph.served import Served
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel

_served = Served(build_agent(model=ScriptedModel(), operations=OPERATIONS), lease_seconds=2.0)
agent, checkpointer, auth = _served.agent, _served.checkpointer, _served.auth
