"""What the metrics need beyond dpft's required packages: packages, Java and models.

One table says which metric needs what. A metric that lacks something stands under ``not_computed``
in metrics.json with the reason; the others are computed.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.records.machine import Check
from dpft.reports.doctor.check import MISSING, OK
from dpft.reports.doctor.packages import extra_check

EXTRA = "metrics"
JAVA = "java"
JAVA_SECONDS = 10
_JAVA_REMEDY = "install a Java runtime, such as Debian's default-jre-headless, and put java in PATH"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one metric needs."""

    packages: tuple[str, ...] = ()
    """Distributions, as pip calls them."""
    java: bool = False
    model: str | None = None
    """Configuration key of a folder with a model."""


METRICS: Mapping[str, Needs] = {
    "meteor": Needs(packages=("pycocoevalcap",), java=True),
    "cider": Needs(packages=("pycocoevalcap",)),
    "rouge_1": Needs(packages=("rouge-score", "nltk")),
    "rouge_2": Needs(packages=("rouge-score", "nltk")),
    "bertscore": Needs(packages=("bert-score",), model="metrics.bertscore_model"),
    "bleurt": Needs(model="metrics.bleurt_model"),
}
"""Metrics, by their names in metrics.json, that need more than a required package."""


def metric_checks(models: Mapping[str, str | None]) -> list[Check]:
    """Returns the checks of what metrics need.

    Args:
        models: Configuration key to the folder given for it, or None.
    """
    packages = sorted({name for needs in METRICS.values() for name in needs.packages})
    return [
        *(_package(name) for name in packages),
        java_check(),
        *(_model(key, folder) for key, folder in models.items()),
    ]


def java_check() -> Check:
    """Returns whether ``java -version`` answers, within ten seconds."""
    cost = _cost([name for name, needs in METRICS.items() if needs.java])
    path = shutil.which(JAVA)
    if path is None:
        return Check(
            what="Java", state=MISSING, found="not in PATH", cost=cost, remedy=_JAVA_REMEDY
        )
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        found = f"java -version gave no answer in {JAVA_SECONDS} seconds"
    except (OSError, subprocess.CalledProcessError, UnicodeDecodeError):
        found = "java -version fails"
    else:
        lines = [line for line in done.stderr.splitlines() if "version" in line]
        return Check(what="Java", state=OK, found=lines[0] if lines else "answers")
    return Check(what="Java", state=MISSING, found=found, cost=cost, remedy=_JAVA_REMEDY)


def _package(name: str) -> Check:
    cost = _cost([metric for metric, needs in METRICS.items() if name in needs.packages])
    return extra_check(name, EXTRA, cost=cost, other=f"{cost}, or other numbers")


def _model(key: str, folder: str | None) -> Check:
    cost = _cost([metric for metric, needs in METRICS.items() if needs.model == key])
    remedy = f"give {key}=FOLDER, a model written by save_pretrained"
    if folder is None:
        return Check(what=key, state=MISSING, found="not given", cost=cost, remedy=remedy)
    if not (Path(folder).expanduser() / "config.json").is_file():
        found = f"{folder} holds no config.json"
        return Check(what=key, state=MISSING, found=found, cost=cost, remedy=remedy)
    return Check(what=key, state=OK, found=folder)


def _cost(metrics: Sequence[str]) -> str:
    stands = "stands" if len(metrics) == 1 else "stand"
    return f"{', '.join(metrics)} {stands} under not_computed"
