"""The runner for training commands of the user's own: a trial is one run of a command.

`template.py` reads placeholders, `styles.py` writes arguments as a trainer wants them,
`metrics.py` reads losses, `process.py` starts and ends processes, `supervise.py` sees one trial
through to its end, and `runner.py` is the plugin.
"""
