"""Transfer: the plan for a target, and the measurement that shows whether it holds."""
