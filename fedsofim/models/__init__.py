"""What is trained: a linear head on features, or a network."""
