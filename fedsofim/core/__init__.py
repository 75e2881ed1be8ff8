"""What everything stands on: errors, arrays, linear algebra, random streams, files."""
