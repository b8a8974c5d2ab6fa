"""sweeper's own trainer: trials of one shape trained as one model.

A job's way through it, from the top:

    runner.py         trials into batches, batches into jobs
    jobs.py           what a job's process runs; how many trials to batch, and how many jobs at once
    train.py          a training run, from sync point to sync point; `checkpoint.py` saves it
    branches.py       horizons that share their trunk: what one run saves for another
    batched.py        a step of K trials: weights [K, ...], batches, the optimizer's update
    program.py        losses and gradients in the mode that works; `compile.py`: if compiling pays
    prepare.py        what a specification stands for: model, scales, optimizer
    architecture.py   the model itself, built and classified at its size

`optimizers/` update stacked parameters: one file and one config add one. `measurements.py` and
`measure.py` are runs that measure more than their loss.
"""
