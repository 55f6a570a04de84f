"""Many processes of one run: what passes between them. Alone imports torch.distributed."""
