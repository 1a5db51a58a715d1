"""The results of a run: columns, summary, checks, findings, and the run folder."""
