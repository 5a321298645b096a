"""Ratios measured within one run: ours beside torch.compile's, or beside plain eager. Seconds are not comparable."""
