"""Programs that make and check the pages of the documentation."""
