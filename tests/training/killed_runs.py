"""Private runs of a small model that are killed at the worst moments, and go on."""

from contextlib import contextmanager

import pytest
import torch

from dpft.methods.base import METHODS
from dpft.methods.full import Full
from dpft.privacy import ledger as ledger_module
from dpft.privacy.ledger import Ledger
from dpft.training import checkpoint as checkpoint_module
from dpft.training import loop as loop_module
from dpft.training import training_run as training_run_module
from dpft.training import training_state
from dpft.training.checkpoint import find_resume_point
from tests.self_checks import checked_phases
from tests.training.toy import plan, privacy, session, spent, tiny_model, train_privately


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


def go(folder, *, resume_point=None, method="full", overspend=False, eps=None, of=None, **settings):
    """Take a private run's steps in a folder; return the weights after them."""
    own = session(folder, tiny_model(), checkpoint_every=2, **settings)
    object.__setattr__(own, "method", METHODS.named(method)(name=method))
    object.__setattr__(own, "model", own.method.prepare(own.model))
    object.__setattr__(own, "choices", checked_phases(own.model, own.method, of or plan()))
    config = privacy()
    object.__setattr__(config, "resume_overspend", overspend)
    object.__setattr__(config, "eps", eps)
    train_privately(own, of or plan(), config, epsilon_after=spent, resume_point=resume_point)
    return {name: value.detach().clone() for name, value in own.model.state_dict().items()}


def go_on(folder, **settings):
    """Go on from where the run in a folder broke off."""
    return go(folder, resume_point=find_resume_point(folder), **settings)


def on_call(number, act):
    """Return a wrapper of a function that acts in place of its ``number``-th call."""

    def wrap(function):
        calls = []

        def wrapped(*args, **kwargs):
            calls.append(None)
            return act(*args, **kwargs) if len(calls) == number else function(*args, **kwargs)

        return wrapped

    return wrap


def die(*_, **__):
    raise Killed


def tear_line(ledger, entry):
    """Write half a line, as a crash inside the write would."""
    ledger._file.write(ledger_module.line_text(entry)[:30])
    ledger._file.flush()
    raise Killed


def tear_text(ledger, line):
    """Write half of a line that is given as it stands."""
    ledger._file.write(line[:30])
    ledger._file.flush()
    raise Killed


def tear_tensors(tensors, path, **_):
    path.write_bytes(b"half")
    raise Killed


MOMENTS = {
    "inside a step": (training_run_module, "per_example_losses", 7),
    "before the first line": (Ledger, "_append", 1),
    "inside the first line": (Ledger, "_append", on_call(1, tear_text)),
    "between the first line and a step's": (Ledger, "_append", 2),
    "inside the first step's line": (Ledger, "_append", on_call(2, tear_text)),
    "between journal and ledger": (Ledger, "append", 4),
    "inside the ledger's write": (Ledger, "_write", on_call(4, tear_line)),
    "between ledger and update": (Full, "finish_gradient", 4),
    "after the update": (loop_module, "check_weights", 4),
    "inside a checkpoint's write": (training_state, "save_file", on_call(5, tear_tensors)),
    "before a checkpoint has its name": (checkpoint_module, "write_model", 3),
    "before the ledger is closed": (Ledger, "close", 1),
    "after it is closed": (ledger_module.Ledger, "__exit__", 1),
}


@contextmanager
def killed(owner, name, wrap):
    """Have a run in the block die of a function; ``wrap`` makes what dies of it, or is the call."""
    wrap = on_call(wrap, die) if isinstance(wrap, int) else wrap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, wrap(getattr(owner, name)))
        with pytest.raises(Killed):
            yield


def kill(folder, moment, **settings):
    """Run until one of ``MOMENTS``, or the call of a function; return the run's folder."""
    with killed(*(MOMENTS[moment] if isinstance(moment, str) else moment)):
        go(folder, **settings)
    return folder


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)
