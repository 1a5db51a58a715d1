# Breed routing rules from known ones, choose the best on validation cases, and compare it on held-out cases.
# Forty candidates are few: with other seeds, the search can end with a built-in rule.
headway evolve examples/18_evolve.yaml --engine gp --evaluations 40 --seed 3 --builtins lmetric-plus-one,prefix-overlap
