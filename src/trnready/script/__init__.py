"""The script that a test runs, `run.py`: one folder for each task, with its template and its prompts."""
