"""Generation of valid synthetic rows for each cell with the trained model.

All rows follow from released counts, the released model and the schema, so generation costs no
epsilon. A row that breaks a rule is counted and drawn again with other random numbers. Rows are
written to disk in blocks, so that an interruption loses at most one block.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import LogitsProcessorList

from dpft.commands.ledger_account import saved_run
from dpft.commands.progress_bars import batch_progress
from dpft.commands.task_model import trained_model_of_run
from dpft.generation.decoding import generate_texts
from dpft.generation.processors import nucleus_processors, root_seed, uniforms
from dpft.run_folder import TRAINING, read_json, write_json
from dpft.synthesis.plan import GIVEN_COLUMN, SynthesisPlan
from dpft.synthesis.rows import RowConstraint, compile_grammar
from dpft.synthesis.schema import Row
from dpft.tasks.custom import CustomTexts

BLOCK = 1024
BLOCKS = "blocks"
"""Folder that contains the blocks until the whole table is written."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Synthetic rows, and the numbers of rejected attempts."""

    rows: tuple[Row, ...]
    unparsed: int
    """Number of texts that were not rows; each was drawn again."""
    rejected: Mapping[str, int]
    """Number of rows that broke each rule; each was drawn again."""


class Writer:
    """Generator of rows with the trained model."""

    def __init__(self, plan: SynthesisPlan, folder: Path) -> None:
        """Load the model of a synthesis."""
        config = saved_run(str(folder / TRAINING))
        trained = trained_model_of_run(folder / TRAINING, config)
        task = trained.fitted(config.task)
        assert isinstance(task, CustomTexts)
        self._task, self._rows = task, plan.rows
        self._outputs = trained.outputs(
            task, plan.config.train.prepare(), batch_size=plan.config.batch_size, max_new_tokens=1
        )
        encoding: Any = self._outputs.encoding
        self._encoding = encoding
        self._grammar = compile_grammar(plan.rows, encoding.tokenizer)
        self._decode = plan.config.decode.limited_to(plan.max_target)
        self._seed = root_seed(self._decode.seed)

    def texts(self, prompts: Sequence[str], places: Sequence[int], attempt: int) -> list[str]:
        """Return the text that the model generates after each prompt.

        Args:
            prompts: The beginnings of rows.
            places: The index of each row among all rows, which selects its random numbers.
            attempt: Number of earlier attempts to draw the row.
        """
        most = self._decode.max_new_tokens
        asked = self._encoding.prompts(
            [self._task.prompt({GIVEN_COLUMN: prompt}) for prompt in prompts],
            max_length=self._encoding.max_length + most,
            max_new_tokens=most,
        )

        def processors(indices: Sequence[int], before: int) -> LogitsProcessorList:
            numbers = uniforms(self._seed, [places[at] for at in indices], most, attempt=attempt)
            warmed, _, choice = nucleus_processors(
                numbers, top_p=1.0, temperature=self._decode.temperature
            )
            held = RowConstraint(
                self._grammar, len(indices), before=before, top_p=self._decode.top_p
            )
            return LogitsProcessorList([warmed, held, choice])

        return generate_texts(
            self._outputs.model,
            self._encoding.tokenizer,
            asked,
            config=self._decode,
            batch_size=self._outputs.batch_size,
            processors=processors,
        )

    def block(self, cells: Sequence[Mapping[str, Any]], start: int, retries: int) -> dict[str, Any]:
        """Return the rows of some cells as texts, and the numbers of failed attempts.

        The first row has index ``start`` among all rows, and a failed attempt is repeated at most
        ``retries`` times.
        """
        prompts = [self._rows.prompt(cell) for cell in cells]
        valid: dict[int, str] = {}
        left, unparsed, rejected = list(range(len(cells))), 0, Counter[str]()
        for attempt in range(1 + retries):
            texts = self.texts([prompts[at] for at in left], [start + at for at in left], attempt)
            again = []
            for at, text in zip(left, texts, strict=True):
                row = self._rows.read(prompts[at], text)
                broken = None if row is None else self._rows.schema.broken(row)
                if row is not None and broken is None:
                    valid[at] = text
                    continue
                unparsed += row is None
                rejected.update([broken] if broken else [])
                again.append(at)
            left = again
            if not left:
                break
        return {
            "rows": [[prompts[at], valid[at]] for at in sorted(valid)],
            "unparsed": unparsed,
            "rejected": dict(rejected),
        }


def generate_rows(plan: SynthesisPlan, cells: Sequence[Mapping[str, Any]], folder: Path) -> Drawn:
    """Return the synthetic rows, including rows in blocks that are already on disk.

    Raises:
        StateError: A block is damaged.
    """
    (folder / BLOCKS).mkdir(exist_ok=True)
    mixed = [cells[at] for at in np.random.default_rng(0).permutation(len(cells))]
    starts = range(0, len(mixed), BLOCK)
    paths = [folder / BLOCKS / f"{number:06d}.json" for number in range(len(starts))]
    if not all(path.exists() for path in paths):
        writer = Writer(plan, folder)
        with batch_progress() as show:
            for start, path in zip(starts, paths, strict=True):
                if not path.exists():
                    block = mixed[start : start + BLOCK]
                    write_json(path, writer.block(block, start, plan.config.retries))
                show("rows", min(start + BLOCK, len(mixed)), len(mixed))
    blocks = [read_json(path) for path in paths]
    read = (plan.rows.read(prompt, text) for block in blocks for prompt, text in block["rows"])
    return Drawn(
        rows=tuple(row for row in read if row is not None),
        unparsed=sum(block["unparsed"] for block in blocks),
        rejected=dict(sum((Counter(block["rejected"]) for block in blocks), Counter())),
    )
