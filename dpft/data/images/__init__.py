"""Images: where they are read, how they become pixels, and how pixels lie in a batch."""
