"""Whole trees in bounded steps: the machine's half of copying them to and from another one.

entry                         what a name in a tree is, and the shapes of the calls
inside_root, directory_fds    a copy stays in its root: names that are refused; no link is crossed
listing, names_listing        the names of a tree, a page at a time
reading                       content of many files in one answer
file_batches, new_directory   many files by one call, never outside the root
writing                       links, directories and large files, as safely
turns                         calls about many files, one after the other
moving                        a name to another place of the same machine
tree_watch                    what changes below a directory, as events; waited for by
                              ``loop_watch`` and ``thread_watch``
"""
