"""Log-probabilities of preference pairs under the reference model, computed once before training.

The reference model is the model at step 0. For an adapter, it is the model with the adapter
switched off, so that no second model is kept in memory. The log-probabilities depend on the
records, so they stay in ``private/``.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.preference_rows import PairLayout, PairRows
from dpft.generation.decoding import batches_by_tokens, evaluation_mode
from dpft.models.losses import token_nll
from dpft.parallel.ranks import Ranks
from dpft.run_folder import REFERENCES, private_folder, write_bytes
from dpft.training.loop import TrainingSet
from dpft.training.training_config import autocast

TENSOR = "log_probabilities"


def with_references(
    config: TrainConfig,
    training_set: TrainingSet,
    model: PreTrainedModel,
    folder: Path,
    ranks: Ranks,
) -> TrainingSet:
    """Return the training set with the reference log-probabilities that its loss needs.

    A resumed run reads the log-probabilities that were stored when it began. Every process computes
    all of them, because a sharded model runs on all processes together.

    Args:
        config: The configuration of the run.
        training_set: The records as tokens.
        model: The model at step 0.
        folder: Folder of the run.
        ranks: The processes of the run.
    """
    layout, pairs = training_set.layout, training_set.examples
    if not isinstance(layout, PairLayout) or not layout.loss.needs_reference:
        return training_set
    assert isinstance(pairs, PairRows)
    references = ranks.broadcast_from_rank_0(_stored, folder, len(pairs))
    if references is None:
        references = reference_log_probabilities(config, layout, pairs, model)
        ranks.on_rank_0(_store, folder, references)
    return replace(training_set, examples=pairs.with_references(references))


@torch.no_grad()
def reference_log_probabilities(
    config: TrainConfig, layout: PairLayout, pairs: PairRows, model: PreTrainedModel
) -> NDArray[np.float32]:
    """Return the log-probability of each answer, shape (pairs, 2), in nats, without dropout."""
    references = np.zeros((len(pairs), 2), np.float32)
    adapted: Any = model
    without_adapter: AbstractContextManager[None] = nullcontext()
    if hasattr(model, "peft_config"):
        without_adapter = cast(AbstractContextManager[None], adapted.disable_adapter())
    costs = [layout.cost(pair) for pair in pairs]
    with evaluation_mode(model), without_adapter:
        for places in batches_by_tokens(costs, config.eval.batch_size):
            batch = layout.collate([pairs[place] for place in places]).to(model.device)
            with autocast(config.train.precision, model.device):
                nll_sums, _ = token_nll(model, batch)
            references[places] = -nll_sums.float().cpu().numpy().reshape(-1, 2)
    return references


def _store(folder: Path, references: NDArray[np.float32]) -> None:
    """Write the log-probabilities, readable only by the owner of the run."""
    private_folder(folder)
    write_bytes(folder / REFERENCES, save({TENSOR: references}), mode=0o600)


def _stored(folder: Path, count: int) -> NDArray[np.float32] | None:
    """Return the log-probabilities that an interrupted run wrote, or None if it wrote none."""
    try:
        references = load_file(folder / REFERENCES)[TENSOR]
    except (OSError, KeyError, SafetensorError):
        return None
    return cast(NDArray[np.float32], references) if references.shape == (count, 2) else None
