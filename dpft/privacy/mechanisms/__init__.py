"""Mechanisms: how a run samples and adds noise, and the cost of both.

``base`` defines the interface of all mechanisms. ``dp_sgd`` has Poisson draws and independent
noise. ``banded`` has cyclic Poisson draws and correlated noise. ``histogram`` is one noisy
histogram of words, for a private vocabulary. To add a mechanism, add a module here, a YAML file in
``conf/mechanism/`` and a test. Engine, sampler, accountants, ledger, plan and reports use the
mechanism of the plan, and do not refer to any mechanism by name.
"""
