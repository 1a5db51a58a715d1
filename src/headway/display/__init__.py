"""How results show themselves, and how work shows its progress: in a terminal, in a notebook, as data frames."""
