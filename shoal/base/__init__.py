"""What every part stands on: files written whole, log lines, the job folder, words in messages."""
