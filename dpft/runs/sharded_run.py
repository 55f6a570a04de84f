"""A run whose model is in shards: cut, and proved as it then runs."""

from dataclasses import replace

from dpft.parallel.ranks import Ranks
from dpft.parallel.shards import WholeSums
from dpft.runs.prepared_run import Prepared
from dpft.runs.sharding import cut
from dpft.runs.together import check_arithmetic
from dpft.runs.training import prove_clipper


def sharded(prepared: Prepared, ranks: Ranks) -> Prepared:
    """Returns a run whose model is cut where that was asked for, its clipper proved.

    Raises:
        InputError: A parameter cannot be sharded, or the processes round otherwise.
        RunError: The clipper is not exact on this model.
    """
    config, training_set = prepared.config, prepared.training_set
    read = None if prepared.rows is None else prepared.rows.read
    shards = cut(prepared.model, config.parallel, training_set.device, ranks, read)
    if shards is None:
        return prepared
    prepared = replace(prepared, shards=shards)
    check_arithmetic(prepared, ranks)
    whole = WholeSums(shards.unsharded)
    with ranks.settled():
        prove_clipper(config, prepared.plan, prepared.model, training_set.layout, whole)
    return prepared
