"""What ``dpft doctor`` looks at, and how it tells what it found."""
