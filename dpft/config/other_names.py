"""Names that users of other programs give to dpft's keys, for the suggestion in a refusal.

Others are Hugging Face's ``TrainingArguments`` and examples, peft, Opacus, private-transformers,
fastDP, jax-privacy and torch. Names that are a key's own last part or nearly so need no entry.
"""

_OF_KEY = {
    "train.learning_rate": "lr max_lr peak_lr",
    "train.weight_decay": "wd decay",
    "train.expected_batch_size": (
        "batch_size bs train_batch_size logical_batch_size total_batch_size global_batch_size"
        " effective_batch_size gradient_accumulation_steps sample_rate sampling_prob"
        " sampling_probability"
    ),
    "train.micro_batch_size": (
        "per_device_train_batch_size per_gpu_train_batch_size per_device_batch_size"
        " physical_batch_size max_physical_batch_size microbatch_size mini_batch_size"
    ),
    "train.epochs": "num_epochs num_train_epochs max_epochs epoch n_epochs",
    "train.steps": "max_steps num_steps train_steps num_train_steps max_iters iterations",
    "train.seed": "seed random_seed data_seed manual_seed",
    "train.precision": "fp16 bf16 half mixed_precision dtype torch_dtype",
    "train.adaptive_loss_scale": "dynamic_loss_scale loss_scale_window grad_scaler",
    "train.device": "device cuda gpu no_cuda use_cpu",
    "train.checkpoint_every": "save_steps save_every checkpoint_interval",
    "train.keep": "save_total_limit",
    "scheduler": "lr_scheduler lr_scheduler_type lr_schedule schedule",
    "scheduler.warmup_steps": "warmup warmup_ratio num_warmup_steps",
    "optimizer": "optim",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon adam_eps",
    "privacy": "private non_private disable_privacy dp use_dp",
    "privacy.eps": "eps epsilon target_epsilon dp_epsilon privacy_budget",
    "privacy.delta": "target_delta dp_delta",
    "privacy.noise_multiplier": (
        "noise noise_level noise_scale sigma dp_noise_multiplier noise_std per_example_noise"
    ),
    "privacy.max_grad_norm": (
        "max_grad_norm clip clip_norm clipping_norm clipping_threshold max_norm l2_clip_norm"
        " l2_norm_clip norm_clip per_example_max_grad_norm per_sample_max_grad_norm"
        " max_per_sample_grad_norm C"
    ),
    "privacy.clipping": "clipping_mode clipping_fn clipping_style clip_method",
    "privacy.engine": "clipping_engine grad_sample_mode ghost_clipping",
    "privacy.accountant": "accounting_mode accounting",
    "privacy.num_examples": "sample_size dataset_size num_train_examples train_size",
    "privacy.unit": "user_column user_id author_column group_by unit_column",
    "task.data_dir": (
        "data dataset data_dir data_file data_files data_path data_folder train_file train_data"
        " csv input_file"
    ),
    "task.hub_name": "dataset_name dataset_id",
    "task.text": "text_column text_column_name text_field dataset_text_field",
    "task.label": "label_column label_column_name",
    "task.max_length": (
        "max_length max_len max_seq_length max_seq_len max_sequence_length seq_len seq_length"
        " block_size context_length cutoff_len model_max_length"
    ),
    "task": "task_name task_mode",
    "model": "model_name model_name_or_path model_id model_type pretrained base_model arch",
    "method": "peft peft_type tuning_method finetuning_type",
    "method.rank": "r lora_r lora_rank",
    "method.alpha": "lora_alpha",
    "method.dropout": "lora_dropout",
    "method.targets": "target_modules lora_target_modules",
    "eval.batch_size": "eval_batch_size per_device_eval_batch_size per_gpu_eval_batch_size",
    "eval.held_out": "test_size val_size validation_split validation_split_percentage val_split",
    "eval.limit": "max_eval_samples max_predict_samples eval_examples",
    "decode.max_new_tokens": "max_new_tokens max_generate_length max_target_length",
    "tracking": "report_to logger wandb",
    "hydra.run.dir": "output_dir out_dir output_folder save_dir run_dir log_dir",
    "resume": "resume_from_checkpoint checkpoint ckpt",
}
MEANT = {name: key for key, names in _OF_KEY.items() for name in names.split()}
"""Each such name to the key that it means."""
