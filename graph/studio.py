"""The built-in agent for LangGraph Studio: what langgraph.json names."""

from standfast.graph.builder import build_agent
from standfast.graph.served import Served

_served = Served(build_agent())
agent, checkpointer, auth = _served.agent, _served.checkpointer, _served.auth
