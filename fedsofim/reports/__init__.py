"""Pages, tables and figures about runs."""
