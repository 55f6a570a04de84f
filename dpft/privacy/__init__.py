"""Everything the guarantee rests on: plan, sampling, clipping, noise, accounting, ledger."""
