"""What every parameter gets at the target.

plan.py       the plan, and how it is made of a model that was read (`plan_of`)
plan_for.py   a plan of anybody's model, without a study
factors.py    the factors of operations, and what they leave to the author of a plain model
apply.py      a plan on a module: initial weights, groups, and the check of an optimizer
in_training.py  does a script train by its plan? its optimizers' steps, looked at
muon_conventions.py  Muon's implementations, and what an optimizer does with a group
explanation.py  a plan with exponents and reasons
"""
