"""What the fork server of stories imports before it forks: all that a run imports on its way.

A run of the tiny model takes two seconds, and its imports take seventeen.
"""

import gc
import os
from importlib import import_module
from pkgutil import walk_packages

import dpft

LIBRARIES = (
    *("matplotlib.backends.backend_svg", "matplotlib.pyplot", "scipy.signal", "sacrebleu.metrics"),
    *("dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp.rdp_privacy_accountant"),
    *("prv_accountant.privacy_random_variables", "hydra.main", "tests.stories.tiny"),
)

gc.disable()
for module in walk_packages(dpft.__path__, "dpft."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
for library in LIBRARIES:
    import_module(library)
import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("gpt2")
gc.freeze()  # or each process would copy all of it as it looks for garbage
gc.enable()
os.fsync = lambda _: None  # as in the test worker: what it guards against is a power cut
