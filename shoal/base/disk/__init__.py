"""Files of a job on this machine's disk: its folder, its logs, files written whole."""
