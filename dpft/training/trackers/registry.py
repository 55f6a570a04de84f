"""Every tracker by name: ``tracking=<name>`` to the class of its configuration."""

from dpft.errors import InputError
from dpft.training.trackers.base import NoTracking, TrackingConfig
from dpft.training.trackers.tensorboard import TensorBoard
from dpft.training.trackers.wandb import WeightsAndBiases

TRACKING: dict[str, type[TrackingConfig]] = {
    "none": NoTracking,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def tracking_class(name: str) -> type[TrackingConfig]:
    """Returns the configuration class of ``tracking=<name>``.

    Raises:
        InputError: There is no such tracker.
    """
    if name not in TRACKING:
        raise InputError(f"tracking must be one of {', '.join(TRACKING)}, got {name!r}.")
    return TRACKING[name]
