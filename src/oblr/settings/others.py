"""Classes of other people that the configuration files name: torch's optimizers, Lightning's trainer and logger."""

from typing import Annotated, Any, Literal

from oblr.kinds import NOT_EMPTY, Count, Decay, Few, Ge, Le, Natural, NonNegative, Part, Positive, Share, Text
from oblr.settings.kinds import Section, section

NONE_OF_IT = "Lightning's; training has no such batches"
BATCHES = (Natural | Annotated[float, Ge(0), Le(1)] | None, NONE_OF_IT)
SWITCH = bool | None

OTHERS: dict[str, Section] = {
    "torch.optim.SGD": section(
        lr=(Annotated[float, Ge(0), Le(1e3)], "learning rate until the schedule sets it"),
        momentum=(Decay, "what the velocity keeps at a step"),
        dampening=(Share, "what of a gradient the velocity leaves out"),
        weight_decay=(NonNegative, "pull of the weights to zero, per unit of the rate"),
        nesterov=(bool, "whether the velocity looks ahead; needs momentum"),
        maximize=(Literal[False], "the step minimises"),
        foreach=(bool | None, "whether all weights are updated at once; null: torch chooses"),
        differentiable=(Literal[False], "nothing is differentiated through the step"),
        fused=(bool | None, "whether one kernel updates; null: torch chooses"),
    ),
    "torch.optim.AdamW": section(
        lr=(Annotated[float, Ge(0), Le(1e3)], "learning rate until the schedule sets it"),
        betas=(list[Decay], "what the averages of gradients and of their squares keep at a step"),
        eps=(Positive, "what keeps the division by the root of the squares finite"),
        weight_decay=(NonNegative, "pull of the weights to zero, per unit of the rate"),
        amsgrad=(bool, "whether the largest average of squares is used"),
        maximize=(Literal[False], "the step minimises"),
        foreach=(bool | None, "whether all weights are updated at once; null: torch chooses"),
        capturable=(bool, "whether the step can be part of a CUDA graph"),
        differentiable=(Literal[False], "nothing is differentiated through the step"),
        fused=(bool | None, "whether one kernel updates; null: torch chooses"),
    ),
    "lightning.Trainer": section(
        accelerator=(Literal["auto", "cpu", "gpu", "cuda"], "what computes; auto: GPUs where there are any"),
        strategy=(Part("oblr.run"), "how devices share the policy"),
        devices=(
            Few | Annotated[list[Natural], NOT_EMPTY] | Literal["auto"],
            "how many on a machine, or all of them",
        ),
        num_nodes=(Few, "machines"),
        precision=(Literal["32-true", "bf16-mixed"], "bf16-mixed rounds weights to bfloat16 where they are used"),
        logger=(Literal[False], "in pretraining none; in training `logger` is it"),
        fast_dev_run=(Literal[False], NONE_OF_IT),
        max_epochs=(Count, "steps"),
        min_epochs=(Natural | None, "steps that are taken whatever ends the run"),
        max_steps=(Count | Literal[-1], "optimizer steps, of pretraining; −1: no limit"),
        min_steps=(Natural | None, "optimizer steps that are taken whatever ends the run"),
        max_time=(Text, "longest run, as DD:HH:MM:SS; null: no limit"),
        limit_train_batches=BATCHES,
        limit_val_batches=BATCHES,
        limit_test_batches=BATCHES,
        limit_predict_batches=BATCHES,
        overfit_batches=(Natural | Annotated[float, Ge(0), Le(1)], NONE_OF_IT),
        val_check_interval=BATCHES,
        check_val_every_n_epoch=(Count | None, NONE_OF_IT),
        num_sanity_val_steps=(Natural | None, NONE_OF_IT),
        log_every_n_steps=(Count | None, "steps between two that are logged"),
        enable_checkpointing=(SWITCH, "whether Lightning saves checkpoints of its own kind"),
        enable_progress_bar=(SWITCH, "whether Lightning shows its own"),
        enable_model_summary=(SWITCH, "whether Lightning prints it"),
        accumulate_grad_batches=(Literal[1], "the step packs its own micro-batches"),
        gradient_clip_val=(Positive | None, "largest norm of the gradient, of pretraining; null: none"),
        gradient_clip_algorithm=(Literal["norm", "value"] | None, "of pretraining: what is clipped"),
        deterministic=(
            bool | Literal["warn"] | None,
            "whether only algorithms are used that always give the same bits",
        ),
        benchmark=(SWITCH, "whether cuDNN tries algorithms out"),
        inference_mode=(bool, NONE_OF_IT),
        use_distributed_sampler=(bool, NONE_OF_IT),
        profiler=(Literal["simple", "advanced", "pytorch"] | None, "Lightning's profile of its own hooks"),
        detect_anomaly=(bool, "whether autograd looks for NaN in every operation, slowly"),
        barebones=(Literal[False], "the run's own callbacks are needed"),
        sync_batchnorm=(bool, NONE_OF_IT),
        reload_dataloaders_every_n_epochs=(Natural, NONE_OF_IT),
        default_root_dir=(Text, "run folder"),
        enable_autolog_hparams=(bool, "whether Lightning logs hyperparameters"),
        model_registry=(Any, "of LitLogger"),
    ),
    "lightning.pytorch.loggers.CSVLogger": section(
        save_dir=(str, "folder"),
        name=(Text, "folder in it"),
        version=(Natural | Text, "folder in that"),
        prefix=(str, "before all names"),
        flush_logs_every_n_steps=(Count, "steps between two writes"),
    ),
}
