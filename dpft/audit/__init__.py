"""Audits of finished runs: what attacks get out of a model, beside what its report promises."""
