"""Rebuilds the embedded sample's three files, the same bytes each time.

python -m benchmarks.embedded.sample --output DIR
"""

import argparse
import gzip
import json
from dataclasses import asdict
from pathlib import Path
from random import Random

from benchmarks.embedded.sample_grammar import Row, split
from dpft.data.raw_rows import EMBEDDED_SAMPLE

SEED = 11
NUM_TRAIN_EXAMPLES = 8000
NUM_HELD_OUT_RECORDS = 150


def splits() -> dict[str, list[Row]]:
    """Return train, validation and test; no record is in two of them."""
    random = Random(SEED)
    seen: set[str] = set()
    held_out = {
        name: split(
            random, records=NUM_HELD_OUT_RECORDS, references=(1, 4), held_out=True, seen=seen
        )
        for name in ("validation", "test")
    }
    train = split(
        random, records=NUM_TRAIN_EXAMPLES // 2, references=(2, 2), held_out=False, seen=seen
    )
    random.shuffle(train)
    return {"train": train, **held_out}


def as_json_lines(rows: list[Row]) -> bytes:
    """Return one JSON object a line, UTF-8, keys sorted."""
    lines = (json.dumps(asdict(row), ensure_ascii=False, sort_keys=True) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def write(output: Path) -> None:
    """Write the three files; no time stamp goes into them."""
    output.mkdir(parents=True, exist_ok=True)
    for name, rows in splits().items():
        packed = gzip.compress(as_json_lines(rows), mtime=0)
        (output / f"{name}.jsonl.gz").write_bytes(packed)


def main(argv: list[str] | None = None) -> None:
    """Run the rebuild from the command line."""
    parser = argparse.ArgumentParser(description="Rebuild the embedded sample.")
    parser.add_argument("--output", type=Path, default=EMBEDDED_SAMPLE)
    write(parser.parse_args(argv).output)


if __name__ == "__main__":
    main()
