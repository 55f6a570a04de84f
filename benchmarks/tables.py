"""What the tables of the benchmarks share: the machine's options, headings and Markdown."""

import argparse
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpft.reports.rendering import line


def add_options(parser: argparse.ArgumentParser, *, output: Path) -> None:
    """Add where and how to run, and where the table goes."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--output", type=Path, default=output)


def machine_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a workload that ``add_options`` asks for."""
    return {name: getattr(options, name) for name in ("threads", "device", "precision")}


def heading(
    title: str, options: argparse.Namespace, *, writer: str, notes: str, columns: Sequence[str]
) -> str:
    """Return what stands above the rows: machine, versions, notes and the names of the columns.

    Args:
        title: Of the table.
        options: As parsed with ``add_options``.
        writer: The command and the file that write it.
        notes: What the numbers are.
        columns: Their names.
    """
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (
        f"# {title}\n\n"
        f"Written by {writer} on {platform.machine()}, "
        f"{os.cpu_count()} cores, device {options.device}, {options.precision}, "
        f"{options.threads} threads, Python {platform.python_version()}, {versions}.\n"
        f"{notes}\n\n"
        f"| {' | '.join(columns)} |\n"
        f"{'|---' * len(columns)}|\n"
    )


def write(page: Path, table: str) -> None:
    """Write a table into a page, in the place of an older one of its title or after the others.

    Args:
        page: A Markdown file; made where there is none.
        table: With its heading, ``# title``.
    """
    title = table.partition("\n")[0]
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    parts = [part.strip() for part in re.split(r"^(?=# )", text, flags=re.MULTILINE)]
    titles = [part.partition("\n")[0] for part in parts]
    if title in titles:
        parts[titles.index(title)] = table.strip()
    else:
        parts.append(table.strip())
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its first column to the left and the others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    cells = [[line(cell) for cell in row] for row in (header, *rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (cells[0], rule, *cells[1:]))
