"""Fine-tuning methods, which select the trainable parameters, with one file per method."""
