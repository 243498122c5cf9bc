"""Children over a change of server or keeper: what is recorded, released and revived."""
