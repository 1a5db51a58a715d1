"""The parts of a report, one module each, in HTML: figures as tables that need no scripts, charts beside them."""
