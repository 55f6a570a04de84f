"""Fine-tuning methods: which parameters train, one file each."""
