"""What a run's model, and the one that it was before training, say to records."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from dpft.audit.base import AuditedRun
from dpft.config.schema import TrainConfig
from dpft.data.encoding import Encoding
from dpft.generation.batches import batches_by_tokens
from dpft.generation.inference import evaluation_mode
from dpft.kinds import TEXT
from dpft.models.architecture import read_architecture
from dpft.models.losses import per_example_losses, token_nll
from dpft.runs.resuming import kept_here
from dpft.runs.task_model import fitted_to, prepare_model, trained_model_of_run, training_head
from dpft.tasks.records import Record


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model that says how likely records are."""

    model: PreTrainedModel
    """On its device."""
    encoding: Encoding
    batch_size: int
    """How many of the longest records are read at once."""

    def log_likelihoods(self, records: Sequence[Record]) -> list[float]:
        """Returns the log-likelihood of what is learned of each record, in nats, in order.

        Of a text it is the sum over its learned tokens, of a label its own, of a score the negative
        squared error.
        """
        rows = self.encoding.rows(records)
        found = [0.0] * len(rows)
        lengths = [len(row.input_ids) + len(row.labels) for row in rows]
        with evaluation_mode(self.model), torch.no_grad():
            for places in batches_by_tokens(lengths, self.batch_size):
                batch = self.encoding.layout.collate([rows[place] for place in places])
                batch = batch.to(self.model.device)
                is_text = batch.answer == TEXT
                losses = (
                    token_nll(self.model, batch)[0]
                    if is_text
                    else per_example_losses(self.model, batch)
                )
                for place, loss in zip(places, losses.tolist(), strict=True):
                    found[place] = -loss
        return found


@contextmanager
def trained(run: AuditedRun, batch_size: int) -> Iterator[Scorer]:
    """Gives the model that the run released."""
    model = trained_model_of_run(run.folder, run.config)
    yield Scorer(
        model=model.on_device(run.config.task, run.device.prepare()),
        encoding=model.encoding(run.config.task, max_new_tokens=None),
        batch_size=batch_size,
    )


@contextmanager
def untrained(run: AuditedRun, batch_size: int) -> Iterator[Scorer]:
    """Gives the model that the run began with, which is as public as what it was made from."""
    encoding = trained_model_of_run(run.folder, run.config).encoding(
        run.config.task, max_new_tokens=None
    )
    model = starting_model(run.config, run)
    model.to(run.device.prepare())  # type: ignore[arg-type]
    yield Scorer(model=model, encoding=encoding, batch_size=batch_size)


def starting_model(config: TrainConfig, run: AuditedRun) -> PreTrainedModel:
    """Returns what the run's method made of its model, before the first step, on the CPU.

    Raises:
        InputError: The model cannot be found any more.
    """
    here = config.__class__(**{**vars(config), "model": kept_here(config.model, run.folder)})
    architecture = read_architecture(here.model)
    here = fitted_to(here, architecture)
    model, _ = prepare_model(here, architecture, training_head(here, architecture))
    return model
