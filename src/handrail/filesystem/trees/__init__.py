"""Whole trees in bounded steps: the machine's half of copying them to and from another one.

entry      what a name in a tree is; which names are taken from another machine
listing    the names of a tree, a page at a time
reading    content of many files in one answer
file_batches, new_directory   many files by one call, never outside the root
writing    links, directories and large files, as safely
changes    what changes below a directory, as events
"""
