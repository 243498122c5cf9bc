"""The real, unmodified Codex command line, with its commands run by a server under test.

From the inside out: ``answers`` (what the model is given back), ``script`` (what the model does
next), both pure; ``model`` (the script as an HTTP server), ``recording`` and ``recorder`` (what
client and server said to each other, and cutting their line), ``codex`` (finding and starting the
program), ``tasks`` (the steps and what must come of them), ``test_codex`` (tasks × servers).
"""
