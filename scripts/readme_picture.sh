#!/bin/sh
# What README.md and docs/idea.md show: three parameterizations, each tuned at width 32 (the standard
# one has its learning rate alone) and tried up to width 256. Arguments are overrides for every
# command, such as launcher=local. Run it again after any interruption, and it goes on. (The curve of standard at width 256 in docs/figures/idea.json has
# only the rates around its optimum, and width 32's.)
set -eu
root=runs/readme
size="model.width=32 model.depth=2 train.steps=1000 train.batch_size=4 train.seq_len=32"
few="search.runs=30 search.seeds=1 search.lines.extend=1 search.eta.points=7 search.combine_seeds=2
    search.retune.points=3 search.fresh_seeds=0"
sweeper search parameterization=standard search=lr $size search.line.points=7 search.fresh_seeds=0 \
    "$@" --study standard --root $root
for parameterization in mup umup; do
    sweeper search parameterization=$parameterization search=independent $size $few +search.retune_seeds=2 \
        "$@" --study $parameterization --root $root
done
for parameterization in standard mup umup; do
    sweeper transfer --to-width 256 --validate 'transfer.widths=[32,64,128,256]' transfer.seeds=2 \
        transfer.step=1 transfer.check=false "$@" --study $parameterization --root $root
done
for parameterization in standard mup; do
    sweeper check 'transfer.widths=[32,64,128,256]' "$@" --study $parameterization --root $root
done
python scripts/figures/idea.py $root
