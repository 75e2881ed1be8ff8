"""What is released, how it is protected, and what it costs."""
