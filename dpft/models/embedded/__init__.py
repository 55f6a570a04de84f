"""The small public model ``model=tiny`` and the sample data, with the scripts that make both."""

from pathlib import Path

MODEL_DIRECTORY = Path(__file__).parent / "tiny"
"""Folder of the shipped model, as ``save_pretrained`` writes it."""
SAMPLE_DIRECTORY = Path(__file__).parent / "sample"
"""Folder of the shipped sample: train, validation and test as .jsonl.gz."""
