"""MovieLens-1M: a million ratings of 3,883 films by 6,040 people (GroupLens, 2003)."""
