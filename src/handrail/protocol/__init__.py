"""What travels: messages, methods and their shapes.  Pure, bytes in and messages out."""
