"""Tests of ``handrail.server``; ``client_kit`` has the clients and servers that others use too."""
