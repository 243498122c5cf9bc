"""Recorded exchanges with the real peer, replayed against a server.

``tests/cases/README.md`` has the form of a case.  From the inside out: ``matching`` (patterns),
``recording`` (what a connection received), ``checks`` (expectations on recordings), then the
part that does things: ``connections``, ``servers``, ``fixture_http``, ``runner``, ``replay``.
"""
