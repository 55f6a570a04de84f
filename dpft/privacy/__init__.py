"""The privacy mechanism: plan, sampling, clipping, noise, accounting and ledger."""
