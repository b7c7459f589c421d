"""Tools: evaluation, baselines beside it, report, summary, demo."""
