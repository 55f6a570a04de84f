"""Self-check of the clipper on a run's model, with synthetic records."""

import logging
from dataclasses import replace

from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.batches import Layout
from dpft.models.losses import per_example_losses
from dpft.parallel.shards import UnshardedSums
from dpft.privacy.clipping.clipper import ClippingChoice
from dpft.privacy.plan import ClippingPlan
from dpft.training.synthetic_batches import self_check_batches

logger = logging.getLogger(__name__)


def check_clipper(
    config: TrainConfig,
    clipping: ClippingPlan | None,
    model: PreTrainedModel,
    layout: Layout,
    shards: UnshardedSums | None = None,
) -> tuple[ClippingChoice, ...]:
    """Run the clipper's self-check of each phase on synthetic records; return its results.

    Raises:
        InputError: The model combines examples.
        RunError: The model writes to its state, or its gradients are not finite.
    """
    clips = config.privacy.clips
    if clips is None or clipping is None:
        return ()
    options = clips.clipping_options(config.train.backward_scale)
    options = replace(options, shards=shards, autocast=config.train.autocast_dtype)
    was_training = model.training
    model.train()
    choices = []
    for phase, start in zip(clipping.phases, clipping.phase_starts(), strict=True):
        config.method.begin_step(model, start)
        check = self_check_batches(
            model, max_length=config.task.longest, layout=layout, has_units=clips.has_units
        )
        of_phase = replace(options, max_grad_norm=phase.max_grad_norm)
        with of_phase.make(model, per_example_losses) as clipper:
            choice = clipper.self_check(
                *check.batches, alone=check.alone, rows_per_unit=check.rows_per_unit
            )
        logger.info("Clipping engine: %s (%s)", choice.engine, clips.engine)
        choices.append(choice)
    config.method.begin_step(model, 0)
    model.train(was_training)
    return tuple(choices)
