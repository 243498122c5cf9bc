"""Output of a child: pipe or terminal to spool to numbered chunks."""
