#!/bin/sh
# The picture of the README: three parameterizations, each searched at width 32 and validated up to
# width 256. Arguments are overrides for every command, such as launcher=inline. Run it again after
# any interruption, and it goes on.
set -eu
root=runs/readme
for parameterization in standard mup umup; do
    sweeper search experiment=lr_transfer parameterization=$parameterization "$@" --study $parameterization --root $root
    sweeper transfer --to-width 256 --validate 'transfer.widths=[32,64,128,256]' 'transfer.depths=[]' \
        'transfer.batches=[]' 'transfer.steps=[]' transfer.seeds=3 transfer.step=0.5 \
        transfer.span=1.5 transfer.check=false "$@" --study $parameterization --root $root
done
sweeper report standard mup umup --root $root --picture docs/assets/transfer.svg
