"""Wrong inputs of users, each with the words that its one message must have."""
