"""Fine-tune Hugging Face language models under differential privacy."""

__version__ = "0.1.0"
