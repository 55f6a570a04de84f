"""All that is wrong with the words of a command, in one error.

Hydra ends at the first word that it cannot take. Where it does, the words are composed again
without that word, until what is left can be composed, and then checked as a job's configuration is.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hydra import compose
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dpft.config.hydra_errors import as_input_error, refused_key, suggested_keys
from dpft.config.hydra_setup import hydra_of_our_own
from dpft.config.keys import key_of
from dpft.config.words import Words
from dpft.errors import Faults, InputError

NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError)
"""What the composition of a configuration may raise."""
Load = Callable[[DictConfig, Words], Any]
"""From what the words of a command compose to, and these words, to its dataclasses."""


def all_faults(
    name: str,
    overrides: Sequence[str],
    first: Exception,
    *,
    known: Sequence[str],
    load: Load | None = None,
) -> InputError:
    """Returns one error of everything that is wrong with words that Hydra cannot compose.

    Args:
        name: The subcommand.
        overrides: Its words.
        first: What Hydra raised of them.
        known: Dotted keys of the configuration's dataclasses.
        load: Makes the dataclasses of what is composed, or refuses it. It is not asked where a
            word was left out, whose lack it might refuse, nor of a run that is gone on with.
    """
    faults, words, complete, error = Faults(), list(overrides), True, first
    # Twice as many: a misspelt key may become a group that has no such option.
    for _ in range(2 * len(overrides) + 1):
        faults.found += as_input_error(error, known).faults
        mended = _mended(words, error, known)
        if mended is None:
            break
        words, complete = mended.words, complete and mended.complete
        try:
            with hydra_of_our_own():
                config = compose(name, overrides=words)
        except NOT_COMPOSED as next_one:
            error = next_one
            continue
        if load and complete and not any(key_of(word) == "resume" for word in words):
            with faults.gathering():
                load(config, Words(job=tuple(words), typed=tuple(words)))
        break
    return InputError(*dict.fromkeys(faults.found))


class _Mended(NamedTuple):
    words: list[str]
    complete: bool
    """Whether every word still says what it was meant to say."""


def _mended(words: list[str], error: Exception, known: Sequence[str]) -> _Mended | None:
    """Returns the words without the one that an error is of, or with the key it was meant to have.

    None where the error is of none of them.
    """
    if isinstance(error, OverrideParseException):
        return _without(words, [word for word in words if word == error.override])
    if isinstance(error, MissingConfigException):
        group = (error.missing_cfg_file or "").rpartition("/")[0]
        return _without(words, [w for w in words if key_of(w).partition(".")[0] == group])
    key = refused_key(error)
    wrong = [word for word in words if key_of(word) == key]
    near = suggested_keys(error, known)
    if not wrong or len(near) != 1 or near[0] in map(key_of, words):
        return _without(words, wrong)
    value = wrong[-1].partition("=")[2]
    others = [word for word in words if word not in wrong]
    return _Mended([*others, f"{near[0]}={value}"], True)


def _without(words: list[str], wrong: list[str]) -> _Mended | None:
    return _Mended([word for word in words if word not in wrong], False) if wrong else None
