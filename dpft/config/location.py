"""Where the YAML configurations are: in an installed wheel, or beside the package in a checkout."""

from pathlib import Path

import dpft
from dpft.errors import InputError


def config_directory() -> Path:
    """Returns the absolute folder of the YAML configurations.

    Raises:
        InputError: Neither place has one.
    """
    package = Path(dpft.__file__).resolve().parent
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if place.is_dir():
            return place
    raise InputError(
        f"dpft's configurations are neither in {places[0]} (an installed wheel) nor in "
        f"{places[1]} (a checkout); install dpft again."
    )
