"""The parts of a report in HTML: tables that need no scripts, and charts."""
