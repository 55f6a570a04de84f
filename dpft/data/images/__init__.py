"""Images: data sets on disk, decoding to pixels, and batches."""
