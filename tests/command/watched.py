"""A training loop with the two lines that a coordinate check needs."""

import argparse

import torch
from torch import nn

import sweeper

parser = argparse.ArgumentParser()
for name in ("lr", "rule"):
    parser.add_argument(f"--{name}", type=float)
for name in ("width", "steps", "seed"):
    parser.add_argument(f"--{name}", type=int)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(8, args.width), nn.ReLU(), nn.Linear(args.width, args.width))
model.append(nn.Linear(args.width, 8, bias=False))
nn.init.zeros_(model[3].weight)
with torch.no_grad():
    for layer in (model[0], model[2]):
        layer.weight.normal_(std=layer.in_features**-0.5)
sweeper.watch(model)
# Under muP the rates of hidden and last weights fall with the width; with rule=0 they do not.
rate = args.lr * (16 / args.width) ** args.rule
groups = [{"params": model[0].parameters(), "lr": args.lr}]
groups += [{"params": model[i].parameters(), "lr": rate} for i in (2, 3)]
optimizer = torch.optim.Adam(groups)
for step in range(args.steps):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {float(loss)}", flush=True)
