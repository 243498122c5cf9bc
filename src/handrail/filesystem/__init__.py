"""Files of this machine: no JSON, no URIs, no base64.

Everything here blocks and is meant for a worker of ``pool``; the exceptions are ``pool`` itself and
the event half of watches.  Paths are native, ``bytes`` or ``str`` with surrogate escapes, so
names that are not UTF-8 survive.  What fails raises ``FilesError``.

  local           the interface: describe and write, and what the others do with one path
  directories     listing and making them
  regular_file    opening and reading regular files, whole or in pieces
  replacement     new content for a file: all of it, or the old content untouched
  copying, removal, walk        whole trees
  trees/          trees in bounded calls, for copies between machines, and watches of them
  handles         blocks of open files, per connection
  missing_watch   notice when a missing path appears
  no_follow       opening without crossing a link
  syscalls        syscalls that the standard library lacks
  content         content of open files: written whole, or copied within the kernel
  errors          what went wrong, in the words of the wire
  pool            the threads this runs in, with deadlines
"""
