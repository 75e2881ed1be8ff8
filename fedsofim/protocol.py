"""The words that servers and clients share."""

# The round of what is released once, before the first round, which is 0.
SETUP = -1
# The prefix of the arrays that carry what simulated clients remember.
MEMORY = "state."
