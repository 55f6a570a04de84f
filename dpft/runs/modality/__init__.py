"""What records are made of, and all that follows from it: texts and images, side by side."""
