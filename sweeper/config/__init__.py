"""The configuration: composed by Hydra, read into checked records."""
