"""Models as plain `nn.Module`s whose operations can be scaled."""
