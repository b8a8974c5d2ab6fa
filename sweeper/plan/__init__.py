"""What every parameter gets at the target."""
