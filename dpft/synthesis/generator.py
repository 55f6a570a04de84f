"""Rows by the trained model: of each cell as many as its share says, every one a row of the schema.

What is written here follows from released counts, the released model and the schema: it costs no
epsilon. A row that breaks a rule between its columns is drawn again, with other random numbers of
the same seed, and counted. Rows are written down in blocks, so that who is interrupted loses one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import LogitsProcessorList

from dpft.errors import StateError
from dpft.evaluation.outputs import ModelOutputs
from dpft.files import TRAINING, read_json, write_json
from dpft.generation.decoding import generate_texts
from dpft.generation.processors import nucleus_processors, root_seed, uniforms
from dpft.kinds import CAUSAL
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import trained_model_of_run
from dpft.runs.tracking import batch_progress
from dpft.synthesis.decoding import RowConstraint, RowGrammar
from dpft.synthesis.measures import Embed, embedding
from dpft.synthesis.plan import GIVEN_COLUMN, PublicPart
from dpft.synthesis.rows import RowFormat
from dpft.synthesis.schema import Row
from dpft.tasks.custom import CustomTexts

BLOCK = 1024
BLOCKS = "blocks"
"""Folder of the rows that are done, until all are."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Synthetic rows, and what it took to draw them."""

    rows: tuple[Row, ...]
    unparsed: int
    """Texts that were no rows; each was drawn anew."""
    rejected: Mapping[str, int]
    """Rows that broke a rule, by the rule; each was drawn anew."""
    left_out: int
    """Rows that were given up."""


class Writer:
    """The trained model as it writes rows."""

    def __init__(self, part: PublicPart, folder: Path) -> None:
        """Loads the model of a synthesis."""
        self._outputs, self._task = _trained(part, folder)
        encoding: Any = self._outputs.encoding
        self._encoding = encoding
        self._rows = part.rows
        self._grammar = RowGrammar(part.rows, encoding.tokenizer)
        self._decode = part.config.decode.limited_to(part.max_target)
        self._seed = root_seed(self._decode.seed)

    def texts(self, prompts: Sequence[str], places: Sequence[int], attempt: int) -> list[str]:
        """Returns what the model writes after each prompt, held to the grammar.

        Args:
            prompts: Beginnings of rows.
            places: Each one's place among all rows, by which its random numbers are known.
            attempt: How often it was written before.
        """
        most = self._decode.max_new_tokens
        asked = self._encoding.prompts(
            [self._task.prompt({GIVEN_COLUMN: prompt}) for prompt in prompts],
            max_length=self._encoding.max_length + most,
            max_new_tokens=most,
        )

        def processors(indices: Sequence[int], before: int) -> LogitsProcessorList:
            own = [places[index] for index in indices]
            numbers = uniforms(self._seed, own, most, attempt=attempt)
            warmed, _, choice = nucleus_processors(
                numbers, top_p=1.0, temperature=self._decode.temperature
            )
            held = RowConstraint(self._grammar, len(own), before=before, top_p=self._decode.top_p)
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
        """Returns the rows of some cells, as texts, from place ``start``, and what it took."""
        prompts = [self._rows.prompt(cell) for cell in cells]
        found: dict[int, str] = {}
        left, unparsed, rejected = list(range(len(cells))), 0, Counter[str]()
        for attempt in range(1 + retries):
            texts = self.texts([prompts[at] for at in left], [start + at for at in left], attempt)
            again = []
            for at, text in zip(left, texts, strict=True):
                row = self._rows.read(prompts[at], text)
                broken = None if row is None else self._rows.schema.broken(row)
                if row is None or broken is not None:
                    unparsed += row is None
                    rejected.update([broken] if broken else [])
                    again.append(at)
                else:
                    found[at] = text
            left = again
            if not left:
                break
        return {
            "rows": [[prompts[at], found[at]] for at in sorted(found)],
            "unparsed": unparsed,
            "rejected": dict(rejected),
            "left_out": len(left),
        }


def generate_rows(part: PublicPart, cells: Sequence[Mapping[str, Any]], folder: Path) -> Drawn:
    """Returns the synthetic rows, those that are done already among them.

    Raises:
        StateError: A block is damaged.
    """
    blocks = folder / BLOCKS
    blocks.mkdir(exist_ok=True)
    order = np.random.default_rng(0).permutation(len(cells))
    mixed = [cells[at] for at in order]
    starts = range(0, len(mixed), BLOCK)
    paths = [blocks / f"{number:06d}.json" for number in range(len(starts))]
    if not all(path.exists() for path in paths):
        writer = Writer(part, folder)
        with batch_progress() as show:
            for start, path in zip(starts, paths, strict=True):
                if not path.exists():
                    own = mixed[start : start + BLOCK]
                    write_json(path, writer.block(own, start, part.config.retries))
                show("rows", min(start + BLOCK, len(mixed)), len(mixed))
    return _read_blocks(paths, part.rows)


def _read_blocks(paths: Sequence[Path], rows: RowFormat) -> Drawn:
    found: list[Row] = []
    unparsed, left_out, rejected = 0, 0, Counter[str]()
    for path in paths:
        block = read_json(path)
        try:
            for prompt, text in block["rows"]:
                row = rows.read(prompt, text)
                if row is None:
                    raise ValueError
                found.append(row)
            unparsed += block["unparsed"]
            left_out += block["left_out"]
            rejected.update(block["rejected"])
        except (KeyError, TypeError, ValueError):
            raise StateError(f"{path} is damaged; remove it, and go on by resume=.") from None
    return Drawn(rows=tuple(found), unparsed=unparsed, rejected=dict(rejected), left_out=left_out)


def generator_features(part: PublicPart, folder: Path) -> Embed | None:
    """Returns what gives features of texts by the generator.

    None where it writes no texts that are to be compared, or does not read on from what it wrote.
    """
    texts = part.rows.texts
    if not texts:
        return None
    outputs, _ = _trained(part, folder)
    encoding: Any = outputs.encoding
    if encoding.layout.kind != CAUSAL:
        return None
    most = max(text.room for text in texts)
    return embedding(outputs.model, encoding.tokenizer, most_tokens=most)


def _trained(part: PublicPart, folder: Path) -> tuple[ModelOutputs, CustomTexts]:
    """Returns the trained model, and the task that says how it is asked."""
    training = folder / TRAINING
    config = saved_run(str(training))
    trained = trained_model_of_run(training, config)
    task = trained.fitted(config.task)
    assert isinstance(task, CustomTexts)
    outputs = trained.outputs(
        task, part.config.train.prepare(), batch_size=part.config.batch_size, max_new_tokens=1
    )
    return outputs, task
