# Breed routing rules from known ones, choose the best on cases it was not bred on, and compare it where nobody has looked.
headway evolve examples/18_evolve.yaml --engine gp --evaluations 40 --seed 1 --builtins lmetric-plus-one,prefix-overlap
