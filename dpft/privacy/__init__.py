"""Everything that the guarantee depends on: plan, sampling, clipping, noise, accounting, ledger."""
