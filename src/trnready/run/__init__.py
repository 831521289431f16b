"""Runs `run.py` in a process of its own and reads what it left behind: report, log, and how it ended."""
