"""Many models, one after another or side by side: local worker processes, a live display, a resumable
record."""
