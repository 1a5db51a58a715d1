"""`headway check`: whether a change makes figures of a run worse, with a sequential test whose error rate is stated."""
