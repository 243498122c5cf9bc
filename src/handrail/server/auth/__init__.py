"""Which client may connect.  ``server/listener.py`` applies these rules, in this order:

1. the user of a loopback peer, before a byte is read: ``loopback_users``; of a Unix socket the
   transport asks the kernel
2. Origin, Host, path and method of its request: ``admission``
3. its token, and how long the answer to a wrong one waits: ``tokens``
"""
