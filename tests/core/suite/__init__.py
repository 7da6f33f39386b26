"""CPython's own test-suite under Magneto: who runs it, and where it may differ."""
