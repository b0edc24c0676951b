"""The HTTP contract of idempotent routes, for any framework (`contract`), and its middleware."""
