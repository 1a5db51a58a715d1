# Breed routing rules from known ones, choose the best on cases it was not bred on, and compare it where nobody has looked.
# Forty candidates are few: of the seeds 1, 2, 3 and 5, two end with a rule that beats the built-in ones and two with
# LMetric's own, which is not told apart from them. This is one of the former.
headway evolve examples/18_evolve.yaml --engine gp --evaluations 40 --seed 3 --builtins lmetric-plus-one,prefix-overlap
