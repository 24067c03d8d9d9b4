"""Text of CSV files: its form, where records begin, and what is in doubt."""
