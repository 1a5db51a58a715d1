"""How results are displayed (in a terminal, in a notebook, as data frames), and how progress is shown."""
