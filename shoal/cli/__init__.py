"""The command line: flags, exit codes and tables. It decides nothing."""
