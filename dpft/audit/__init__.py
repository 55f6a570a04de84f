"""Audits of finished runs: attacks on the model, beside the epsilon that its report promises."""
