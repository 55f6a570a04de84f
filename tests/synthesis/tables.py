"""A private table of visitors, made of a fixed seed, and its schema."""

import csv
import random
from pathlib import Path
from typing import Any

CITIES = ["Rome", "Oslo", "Bern"]
SCHEMA: dict[str, Any] = {
    "columns": {
        "customer_id": {"type": "id"},
        "city": {"type": "category", "values": CITIES},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "smoker": {"type": "boolean"},
        "note": {"type": "text", "max_tokens": 24},
    },
    "label": "smoker",
}


def visitors(count: int = 60) -> list[dict[str, str]]:
    """Return rows, two of each customer."""
    choose = random.Random(1)
    rows = []
    for number in range(count):
        city = choose.choices(CITIES, [6, 3, 1])[0]
        smoker = choose.random() < 0.3
        rows.append(
            {
                "customer_id": str(number // 2),
                "city": city,
                "age": str(choose.randint(18, 90)),
                "smoker": "yes" if smoker else "no",
                "note": f"A visitor from {city} who {'smokes' if smoker else 'eats'} here.",
            }
        )
    return rows


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path
