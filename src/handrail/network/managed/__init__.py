"""Processes with a managed network, as the server or executor that started them sees them.

``start`` is what a caller asks for, ``process`` the network of one process, ``way_out`` the sockets
in its sandbox, ``porter_life`` the porter that serves them, ``denials`` what was refused.
"""
