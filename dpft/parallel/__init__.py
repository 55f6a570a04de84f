"""Several processes of one run; the only package that imports torch.distributed."""
