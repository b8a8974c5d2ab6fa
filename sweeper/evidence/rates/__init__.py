"""The rate and the batch over models and horizons."""
