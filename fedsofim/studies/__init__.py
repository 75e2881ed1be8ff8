"""Many runs: sweeps, searches, and the paper's tables."""
