"""Mechanisms: how a run samples, adds noise, and what that costs.

Read ``base`` for the questions that every mechanism answers, then the tenants: ``dp_sgd`` (Poisson
draws, independent noise), ``banded`` (cyclic Poisson draws, correlated noise) and ``histogram``
(one noisy histogram of words, for a private vocabulary). A further one is a module here, a YAML in
``conf/mechanism/`` and a test: engine, sampler, accountants, ledger, plan and reports ask the
plan's mechanism and know none by name.
"""
