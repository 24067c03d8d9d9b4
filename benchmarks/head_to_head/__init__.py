"""shoal beside other systems: run.py has the command."""
