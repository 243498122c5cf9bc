"""handrail: the hands of an agent, and the rail beside them.

The layers, from the floor up (``docs/architecture.md`` has the picture):

  errors, telemetry.names         the floor
  keeper                          a program of its own: starts and holds children
  process, filesystem, sandbox    this machine, without any protocol
  protocol, transport             what travels, and what moves it
  server / executor               one machine for many clients / the same hands near and far
  policy, patch, orchestrator, unified_exec    what an agent calls
  cli                             the surfaces
"""

from handrail.version import __version__

__all__ = ["__version__"]
