"""One run: made ready, trained, measured and written."""
