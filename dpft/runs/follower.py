"""What every process of a run but the first does: its share of the work, and no word of it.

It writes nothing and has no folder. What it needs of the run's own folder, keys, plan and weights,
the first process sends it.
"""

import json

from dpft.config.keys import plain
from dpft.config.load import from_values
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.parallel.ranks import Ranks
from dpft.parallel.silence import without_logging
from dpft.runs.prepared_run import prepare
from dpft.runs.scheduled_scores import scheduled_scores
from dpft.runs.scoring import score
from dpft.runs.sharded_run import sharded
from dpft.runs.together import agreed, share_secrets
from dpft.runs.training import follow_training


def share_settings(
    config: TrainConfig | None, goes_on: bool, ranks: Ranks
) -> tuple[TrainConfig, bool]:
    """Returns the configuration that the first process runs, and whether it goes on with a run.

    Args:
        config: The first one's, which may be that of a run that it goes on with; None elsewhere.
        goes_on: The first one's.
        ranks: The processes.
    """
    if config is not None and ranks.size == 1:
        return config, goes_on
    said = b"" if config is None else json.dumps([plain(config), goes_on]).encode()
    values, goes_on = json.loads(ranks.broadcast(said))
    if config is None:
        config = from_values(values, TrainConfig, polymorphic=POLYMORPHIC)
    return config, goes_on


def follow(ranks: Ranks) -> None:
    """Runs beside the first process, from its first word to its last score.

    Raises:
        InputError: Anything does not fit here.
        SaidElsewhere: Another process failed, and says why.
    """
    with without_logging():
        _follow(ranks)


def _follow(ranks: Ranks) -> None:
    with ranks.settled():
        pass
    config, goes_on = share_settings(None, False, ranks)
    with ranks.settled():
        pass  # The first one looks at its folder.
    if goes_on:
        (is_done,) = ranks.any(False)
        if is_done:
            return
        with ranks.settled():
            pass  # It reads its keys.
    secrets = share_secrets(None, ranks)
    with ranks.settled():
        prepared = prepare(config, secrets, None, ranks=ranks)
    prepared = sharded(agreed(prepared, ranks), ranks)
    with ranks.settled():
        pass  # It writes what the run begins with.
    (is_scored_before,) = ranks.any(False)
    if is_scored_before:
        score(prepared, "before", ranks)
    follow_training(
        prepared.config,
        prepared.plan,
        prepared.model,
        prepared.training_set,
        ranks,
        prepared.shards,
        scheduled_scores(prepared, None, ranks),
    )
    score(prepared, "after", ranks)
