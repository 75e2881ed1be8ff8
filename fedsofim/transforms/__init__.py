"""What is done to every record's gradient before it is clipped."""
