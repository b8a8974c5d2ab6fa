"""The mathematics: what a parameterization prescribes for a parameter of another size; no torch.

    spec.py               what a parameter is, what it is given, and the base class of all but u-muP
    relative.py           exponents of width; standard, NTK, muP, mean-field: a table of them each
    umup.py, spectral.py, effective_theory.py    rules in absolute sizes
    gamma.py              constants of layer types and groups, under all of them
    prescription.py       factors times eta, eps and decay: the numbers that a parameter trains with

A new parameterization that a table of exponents says is a class in `relative.py`; any other is a
file here, with a subclass of `spec.BaseParameterization`. Its config in `conf/parameterization/`
makes it known.
"""
