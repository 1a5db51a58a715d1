"""Charts as Vega-Lite specifications, plain dicts: one module a family. A page draws them, a notebook can too."""
