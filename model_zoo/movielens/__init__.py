"""MovieLens-100K: 100,000 ratings of 1,682 films by 943 people (GroupLens, 1998)."""
