"""What the large run will reach: laws of the loss, fitted, tested backwards, carried on."""
