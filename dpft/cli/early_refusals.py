"""Refusals that need no library which takes seconds to import: they come at once."""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from dpft.config.composing import register_resolver
from dpft.config.hydra_errors import as_input_error
from dpft.config.location import config_directory
from dpft.errors import InputError


def refuse_bare_words(name: str, overrides: Sequence[str]) -> None:
    """Refuses a folder given without its key to a subcommand that takes ``run=RUN``.

    Raises:
        InputError: It says the key.
    """
    bare = [word for word in overrides if "=" not in word and word[:1] not in "~+"]
    if name in ("eval", "generate", "export") and bare:
        raise InputError(f"dpft {name} takes KEY=VALUE, got {bare[0]!r}; write run={bare[0]}.")


def refuse_unknown_keys(name: str, overrides: Sequence[str]) -> None:
    """Refuses a misspelt key by the YAMLs alone, before libraries that take seconds are imported.

    Whatever else is wrong is left to the composition proper: with ``run=RUN`` other keys are known.

    Raises:
        InputError: It names the key, and those that it may have been meant to be.
    """
    if any(word.startswith("run=") for word in overrides):
        return
    register_resolver()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            compose(name, overrides=list(overrides))
    except HydraException as error:
        if isinstance(error.__cause__, ConfigAttributeError | ConfigKeyError):
            refusal = as_input_error(error, known=[])
            if "did you mean" in str(refusal):
                raise refusal from error
    except (OmegaConfBaseException, YAMLError):
        return
