"""The base of every part: files written whole, log lines, the job folder, words in messages."""
