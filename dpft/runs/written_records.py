"""What a run's model writes, read back as rows, and written anew where it is no row.

A text that the task's template does not divide into columns is drawn again, with other random
numbers of the same seed, at most ``retries`` times; what is no row then is kept apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpft.config.schema import GenerateConfig
from dpft.evaluation.groups import Group
from dpft.evaluation.outputs import ModelOutputs
from dpft.evaluation.scored import OnProgress, counter
from dpft.generation.decoding import DecodeConfig, Draws
from dpft.parallel.processes import own_device
from dpft.parallel.ranks import ALONE, Ranks
from dpft.runs.progress import batch_progress
from dpft.runs.sharding import cut, loading_device
from dpft.runs.together import check_same_model
from dpft.runs.trained_model import TrainedModel
from dpft.tasks.base import TextTask
from dpft.tasks.records import Example

Prompt = tuple[Mapping[str, Any], Example]
"""A row in the task's format without its answer, and what the model goes on from."""
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written after some prompts."""

    texts: tuple[str, ...]
    """The last text after each."""
    records: tuple[Record | None, ...]
    """The row that it is; None where it is none."""
    unread: tuple[int, ...]
    """How many were no rows after the first attempt, after the second, and so on."""

    @property
    def rows(self) -> list[Record]:
        """The rows, in the order of the prompts."""
        return [record for record in self.records if record is not None]

    def unparsed(self, prompts: Sequence[Prompt]) -> list[Record]:
        """Returns the texts that are no rows, each with the prompt's columns where it has any."""
        found = zip(prompts, self.texts, self.records, strict=True)
        return [
            {"text": text} | ({"prompt": dict(row)} if row else {})
            for (row, _), text, record in found
            if record is None
        ]


def write_records(
    config: GenerateConfig,
    task: TextTask,
    trained_model: TrainedModel,
    prompts: Sequence[Prompt],
    ranks: Ranks = ALONE,
) -> Written:
    """Returns what the model writes after each prompt, with a bar on a terminal.

    Args:
        config: How texts are written.
        task: Reads them.
        trained_model: Writes them.
        prompts: What it goes on from.
        ranks: The processes that share the prompts; each of them has what all have written.

    Raises:
        InputError: As ``TrainedModel.outputs``.
    """
    outputs = _outputs(config, task, trained_model, ranks)
    if ranks.size > 1:
        check_same_model(outputs.model, prompts, ranks)
        outputs = replace(outputs, ranks=ranks)
    if config.parallel.shards_model:
        cut(outputs.model, config.parallel, own_device(config.train.prepare(), ranks), ranks)
    texts, unread = [""] * len(prompts), []
    places = list(range(len(prompts)))
    with batch_progress(shown=ranks.is_first) as show:
        # Where nothing is drawn, another attempt writes the same text.
        retries = config.retries if config.decode.draws else 0
        for attempt in range(1 + retries):
            draws = Draws(places=places, attempt=attempt)
            asked = [prompts[place][1] for place in places]
            found = _texts(outputs, asked, config.decode, draws, show)
            for place, text in zip(places, found, strict=True):
                texts[place] = text
            places = [at for at in places if task.record(prompts[at][0], texts[at]) is None]
            unread.append(len(places))
            if not places:
                break
    records = [task.record(row, text) for (row, _), text in zip(prompts, texts, strict=True)]
    return Written(texts=tuple(texts), records=tuple(records), unread=tuple(unread))


def _outputs(
    config: GenerateConfig, task: TextTask, trained_model: TrainedModel, ranks: Ranks
) -> ModelOutputs:
    with ranks.settled():
        device = own_device(config.train.prepare(), ranks)
        return trained_model.outputs(
            task,
            loading_device(config.parallel, device),
            batch_size=config.batch_size,
            max_new_tokens=config.decode.max_new_tokens,
        )


def _texts(
    outputs: ModelOutputs,
    prompts: Sequence[Example],
    decode: DecodeConfig,
    draws: Draws,
    show: OnProgress,
) -> list[str]:
    groups = [Group(input=prompt.group, examples=(prompt,)) for prompt in prompts]
    what = f"attempt {draws.attempt + 1}" if draws.attempt else "records"
    return outputs.texts(groups, decode, counter(what, len(groups), show), draws)
