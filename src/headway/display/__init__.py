"""How results are displayed (in a terminal, in a notebook, as data frames), and how long work shows its progress."""
