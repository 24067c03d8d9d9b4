"""Census income (UCI adult): whether a person earns more than 50,000 dollars a year."""
