"""How to run a run again: its command, and its configuration as far as it may be shown.

Seeds are left out, and so are paths that the user did not write, which name a machine and its
owner. ``privacy.noise_seed`` is left out even where it was written: whoever knows it can subtract
the noise.
"""

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from dpft.reports.run.run_record import RunRecord
from dpft.run_folder import is_base_model

SECRET = "privacy.noise_seed"
LEFT_OUT = ("reference", "reference_maps")
"""Sections that have their place elsewhere in the report."""
A_PATH = "(a path on the machine of the run)"


def command(record: RunRecord) -> str | None:
    """Returns the command that began the run; None where there was none."""
    if record.overrides is None:
        return None
    words = [word for word in record.overrides if _key(word) != SECRET]
    name = "tune" if record.is_of_search else "train"
    given = ["rows=..."] if record.config.task.source == "memory" else []
    if is_base_model(record.config.model.path or ""):
        # What dpft wrote for the object is no word of the user's.
        ours = ("model", "model.name", "model.path")
        words = [word for word in words if _key(word) not in ours]
        given += ["model=...", "tokenizer=..."]
    if given:
        return f"dpft.{name}({', '.join([repr(words), *given])})"
    return shlex.join(["dpft", name, *words])


def configuration(record: RunRecord) -> str:
    """Returns config.yaml without seeds and paths that the user did not write."""
    kept = public_configuration(record.values, record.overrides or ())
    return str(yaml.safe_dump(kept, sort_keys=True, allow_unicode=True))


def public_configuration(config: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """Returns the content of config.yaml without seeds and paths that the user did not write.

    Args:
        config: What config.yaml holds.
        overrides: What the user wrote after ``dpft train``.
    """
    shown = {name: part for name, part in config.items() if name not in LEFT_OUT}
    kept: dict[str, Any] = _shown(shown, "", overrides)
    return kept


def _shown(value: Any, key: str, overrides: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        inner = {name: f"{key}.{name}".lstrip(".") for name in value}
        return {
            name: _shown(part, inner[name], overrides)
            for name, part in value.items()
            if not _is_hidden_seed(inner[name], overrides)
        }
    if isinstance(value, list):
        return [_shown(part, key, overrides) for part in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        theirs = any(value in word for word in overrides) and not is_base_model(value)
        return value if theirs else A_PATH
    return value


def _is_hidden_seed(key: str, overrides: tuple[str, ...]) -> bool:
    if not key.endswith("seed"):
        return False
    return key == SECRET or key not in map(_key, overrides)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
