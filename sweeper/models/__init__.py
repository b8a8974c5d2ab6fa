"""Models as plain `nn.Module`s, and what a scheme needs to know of them."""
