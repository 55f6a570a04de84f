"""All planted faults, one module per area."""

from tests.planted.fault import Fault
from tests.planted.faults import (
    accounting,
    clipping,
    files,
    ledger,
    noise,
    norms,
    resume,
    sampling,
    text,
)

FAULTS: tuple[Fault, ...] = (
    *sampling.FAULTS,
    *clipping.FAULTS,
    *norms.FAULTS,
    *noise.FAULTS,
    *accounting.FAULTS,
    *ledger.FAULTS,
    *files.FAULTS,
    *resume.FAULTS,
    *text.FAULTS,
)
