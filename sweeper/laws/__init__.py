"""Laws: what the batch, the number of tokens and the width do to eta, betas, eps and decay."""
