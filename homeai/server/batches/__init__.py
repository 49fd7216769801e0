"""Durable background work: files of requests that are answered when there is room, and survive a power cut.

upload ─▶ contents.py (the file)      create ─▶ lines.py (every line checked) ─▶ store.py (SQLite)
runner.py takes waiting lines, turn by turn (turns.py), asks the app for each (asking.py), and writes its
answer and that it is done in one transaction. What was in flight when everything ended is still waiting.
"""
