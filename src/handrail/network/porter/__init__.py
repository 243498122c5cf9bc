"""The porter: a program that accepts the connections of managed processes, decides, dials, relays.

One for each server, a child of the keeper.  It outlives the server: connections, lists and answers
are here.  Standard library only, and few modules of it: it has to stay small.
"""
