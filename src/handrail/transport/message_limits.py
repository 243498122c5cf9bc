"""How large a message may be, and how many unsent bytes make a receiver pause."""

#: Largest message accepted from a WebSocket or Unix-socket peer, and largest frame of a WebSocket.
MESSAGE_LIMIT = 16 * 1024 * 1024
#: How many times that a WebSocket message in several frames may hold, as with the peer (0.169.0).
FRAMES_OF_A_MESSAGE = 4
#: Largest line accepted on stdio; the parent is trusted with more.
LINE_LIMIT = 64 * 1024 * 1024
#: Above this many unsent bytes the receiver is told to pause, below the second to resume.
HIGH_WATER = 512 * 1024
LOW_WATER = 128 * 1024
