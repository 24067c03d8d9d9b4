"""Jobs and processes of this machine, found and held."""
